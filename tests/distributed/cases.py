"""Real models, what they are fed, and the ways to train them that are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from autoplan.job import Precision
from autoplan.plan import Plan
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from tests.distributed.greedy import greedy_regions
from tests.distributed.plans import make_plan
from tests.parity.models import GPT, MLP, gpt2, initialise, language_batch, llama

GLOBAL_BATCH = 8
STEPS = 3


def _named(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"input_ids": batch["ids"], "labels": batch["labels"]}


def _regression(rows: int) -> dict[str, Tensor]:
    return {"x": torch.randn(rows, 16), "y": torch.randn(rows, 8)}


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], dict[str, Tensor]]]] = {
    "gpt2": (gpt2, lambda rows: _named(language_batch(rows))),
    "llama": (llama, lambda rows: _named(language_batch(rows))),
    "mlp": (MLP, _regression),
    "gpt": (GPT, language_batch),
    "gpt tied": (lambda: GPT(tied=True), language_batch),
}


@dataclass(frozen=True)
class Case:
    """One way to train one model; ``mesh`` is (dp, tp)."""

    model: str
    mesh: tuple[int, int]
    zero: int
    recompute: bool
    dtype: torch.dtype
    num_microbatches: int
    optimizer: str

    @property
    def world_size(self) -> int:
        return self.mesh[0] * self.mesh[1]


def make_model(name: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return initialise(MODELS[name][0](), dtype)


def make_batches(name: str, dtype: torch.dtype) -> list[dict[str, Tensor]]:
    torch.manual_seed(1)
    batches = [MODELS[name][1](GLOBAL_BATCH) for _ in range(STEPS)]
    return [
        {key: value.to(dtype) if value.is_floating_point() else value for key, value in b.items()}
        for b in batches
    ]


@cache
def graph_of(name: str, dtype: torch.dtype) -> OpGraph:
    """The graph in ``dtype``; halves are the precision of a float32 model's computation."""
    stored = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    model, batch = make_model(name, stored), make_batches(name, stored)[0]
    return capture(model, batch, dtype=None if stored == dtype else dtype)


def lowest_dtype(graph: OpGraph) -> torch.dtype:
    """The lowest floating-point precision of any value: transformers computes losses in float32."""
    used = {meta.dtype for node in graph.nodes for meta in node.outputs}
    return torch.float32 if "float32" in used else torch.float64


def greedy_plan(graph: OpGraph, case: Case, precision: Precision = "fp32") -> Plan:
    dp, tp = case.mesh
    recomputed = frozenset(block.path for block in graph.blocks) if case.recompute else frozenset()
    return make_plan(
        graph.fingerprint,
        global_batch=GLOBAL_BATCH,
        dp=dp,
        tp=tp,
        zero=case.zero,
        num_microbatches=case.num_microbatches,
        precision=precision,
        regions=greedy_regions(graph, tp, recomputed),
    )
