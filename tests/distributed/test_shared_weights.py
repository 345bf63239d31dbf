"""Weights that several blocks share, trained on four gloo ranks and on one device.

ALBERT runs the blocks of one layer again and again; other models give the same weight, or the same
layer, to blocks of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AlbertConfig, AlbertForMaskedLM

from autoplan.plan import Plan
from autoplan.runtime.parallelize import parallelize
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from tests.distributed.cases import GLOBAL_BATCH, STEPS, lowest_dtype
from tests.distributed.families_on_ranks import train
from tests.distributed.greedy import greedy_regions
from tests.distributed.harness import run_ranks
from tests.distributed.pipelines import Cell, compare, pipeline_plan
from tests.distributed.plans import make_plan
from tests.parity.models import initialise, language_batch

LAYERS, WIDTH = 4, 16


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Sharing(nn.Module):
    """Blocks that share a weight, or all they have."""

    def __init__(self, *, all_of_it: bool) -> None:
        super().__init__()
        first = Residual()
        layers = [first if all_of_it else Residual() for _ in range(LAYERS - 1)]
        for layer in layers:
            layer.up.weight = first.up.weight
        self.layers = nn.ModuleList([first, *layers])
        self.out = nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return F.mse_loss(self.out(x), y)


def albert() -> nn.Module:
    config = AlbertConfig(
        vocab_size=32, embedding_size=8, hidden_size=WIDTH, num_hidden_layers=3,
        num_attention_heads=4, intermediate_size=32, max_position_embeddings=8,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return AlbertForMaskedLM(config)


def rows(count: int) -> dict[str, Tensor]:
    return {"x": torch.randn(count, WIDTH).double(), "y": torch.randn(count, 8).double()}


def tokens(count: int) -> dict[str, Tensor]:
    batch = language_batch(count)
    return {"input_ids": batch["ids"], "labels": batch["labels"]}


MODELS: Mapping[str, tuple[Callable[[], nn.Module], Callable[[int], dict[str, Tensor]]]] = {
    "weight": (lambda: Sharing(all_of_it=False), rows),
    "layer": (lambda: Sharing(all_of_it=True), rows),
    "albert": (albert, tokens),
}


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return initialise(MODELS[name][0](), torch.float64).train()


def traced(name: str) -> OpGraph:
    return capture(made(name), MODELS[name][1](2))


def train_sharing(rank: int, given: list[tuple[str, OpGraph, Plan]]) -> None:
    for name, graph, plan in given:
        torch.manual_seed(1)
        batches = [MODELS[name][1](GLOBAL_BATCH) for _ in range(STEPS)]
        model = made(name)
        if plan.mesh.pp == 1:
            train(model, batches, graph, plan)
        else:
            pm = parallelize(model, graph, plan)
            compare(pm, model, batches, "adamw", lowest_dtype(graph))


def test_weights_of_several_blocks_train_alike():
    """Over tp and over dp with ZeRO 3."""
    given = []
    for name in MODELS:
        graph = traced(name)
        plan = make_plan(
            graph.fingerprint, global_batch=GLOBAL_BATCH, dp=2, tp=2, zero=3, num_microbatches=2,
            regions=greedy_regions(graph, 2, frozenset()),
        )  # fmt: skip
        given.append((name, graph, plan))
    run_ranks(train_sharing, 4, given, deadline_s=280)


def test_stages_share_weights():
    """Every stage that reads one holds it, and the sum of all gradients is that of one device."""
    cells = [
        Cell(model=name, firsts=(0, 2), dp=2, zero=zero, num_microbatches=4)
        for name, zero in (("weight", 0), ("layer", 3), ("albert", 1))
    ]
    given = []
    for cell in cells:
        graph = traced(cell.model)
        given.append((cell.model, graph, pipeline_plan(graph, cell)))
    run_ranks(train_sharing, 4, given, deadline_s=280)
