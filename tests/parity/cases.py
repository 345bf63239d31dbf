"""The models of the parity tests with a batch, their graph and their truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from tests.parity.models import GPT, MLP, gpt2, initialise, language_batch, llama
from tests.parity.simulate import Outcome, one_device

BATCH = 6
MODELS: dict[str, Callable[[], nn.Module]] = {
    "gpt": GPT,
    "tied-gpt": lambda: GPT(tied=True),
    "mlp": MLP,
    "hf-gpt2": gpt2,
    "hf-llama": llama,
}


@dataclass(frozen=True)
class Case:
    """A model, its global batch, and the graph at that batch."""

    model: nn.Module
    batch: dict[str, Tensor]
    graph: OpGraph

    def truth(self) -> Outcome:
        """Loss and gradients on one device."""
        return one_device(self.model, self._loss)

    def _loss(self) -> Tensor:
        output = self.model(**self.batch)
        return output if isinstance(output, Tensor) else output.loss


@cache
def case(name: str, dtype: torch.dtype = torch.float64) -> Case:
    """The model of this name at ``BATCH``; a third of its labels are ignored."""
    model = initialise(MODELS[name](), dtype)
    torch.manual_seed(0)
    if name == "mlp":
        batch = {"x": torch.randn(BATCH, 16, dtype=dtype), "y": torch.randn(BATCH, 8, dtype=dtype)}
    else:
        batch = language_batch(BATCH)
    if name.startswith("hf-"):
        batch["input_ids"] = batch.pop("ids")
    return Case(model, batch, capture(model, batch).at_batch(BATCH))
