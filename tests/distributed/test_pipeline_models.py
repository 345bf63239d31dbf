"""What crosses between stages: encoder outputs, biases, integers, bools, what has no gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoplan.errors import PlanError
from autoplan.plan import Plan
from autoplan.runtime.parallelize import parallelize
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from tests.distributed.cases import GLOBAL_BATCH, STEPS, lowest_dtype
from tests.distributed.harness import run_ranks
from tests.distributed.pipelines import Cell, compare, pipeline_plan
from tests.families import random_batch, real, tiny, traced
from tests.parity.models import Layer, initialise, language_batch

FAMILIES = (
    Cell(model="t5-small", firsts=(0, 1, 5, 7), pp=4),
    Cell(model="bart-base", firsts=(0, 2, 4, 5), schedule="interleaved_1f1b", dp=2, zero=1),
    Cell(model="bert-base", firsts=(0, 1, 2, 3), schedule="zbv", tp=2),
    Cell(model="vit-b16", firsts=(0, 1), tp=2, num_microbatches=GLOBAL_BATCH),
)
MORE_FAMILIES = (
    Cell(model="t5-small", firsts=(0, 2, 5, 6), schedule="interleaved_1f1b", tp=2),
    Cell(model="bart-base", firsts=(0, 1, 3, 4), pp=4, num_microbatches=8),
    Cell(model="gemma2-9b", schedule="zero_bubble", dp=2),
    Cell(model="falcon-40b", firsts=(0, 1), tp=2, recompute=True),
    Cell(model="vit-b16", firsts=(0, 1), schedule="gpipe", dp=2, zero=3, num_microbatches=2),
)


def train_families(rank: int, plans: list[tuple[Cell, OpGraph, Plan]]) -> None:
    for cell, graph, plan in plans:
        torch.manual_seed(1)
        subject = tiny(cell.model)
        batches = [random_batch(subject, GLOBAL_BATCH, torch.float64) for _ in range(STEPS)]
        model = real(cell.model)
        try:
            compare(parallelize(model, graph, plan), model, batches, "adamw", lowest_dtype(graph))
        except Exception as error:
            raise AssertionError(f"{cell}: {error}") from error


def check_families(cells: Sequence[Cell]) -> None:
    plans = []
    for cell in cells:
        graph = traced(cell.model)
        plans.append((cell, graph, pipeline_plan(graph, cell)))
    run_ranks(train_families, 4, plans, deadline_s=280)


def test_families_train_alike():
    check_families(FAMILIES)


@pytest.mark.slow
def test_more_families_train_alike():
    check_families(MORE_FAMILIES)


class Mixed(nn.Module):
    """Behind its layers it reads an integer, a bool and a constant of what went before them."""

    def __init__(self, frozen: int = 0) -> None:
        super().__init__()
        self.tokens, self.kinds = nn.Embedding(32, 16), nn.Embedding(17, 16)
        self.layers = nn.ModuleList(Layer(16, 2) for _ in range(2))
        self.head = nn.Linear(16, 32)
        for part in (self.tokens, *self.layers)[:frozen]:
            part.requires_grad_(False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        first = self.tokens(ids)
        positive = first > 0
        kind = positive.long().sum(-1)
        x = first
        for layer in self.layers:
            x = layer(x)
        x = torch.where(positive, x, first.detach()) + self.kinds(kind)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def train_mixed(rank: int, plans: Mapping[int, tuple[OpGraph, Plan]]) -> None:
    for frozen, (graph, plan) in plans.items():
        model = initialise(Mixed(frozen), torch.float64)
        torch.manual_seed(1)
        batches = [language_batch(GLOBAL_BATCH) for _ in range(STEPS)]
        compare(parallelize(model, graph, plan), model, batches, "adamw", torch.float64)


@pytest.mark.parametrize(
    ("schedule", "frozen_parts"), [("1f1b", (0, 1, 3)), ("zero_bubble", (0, 1))]
)
def test_integers_bools_and_frozen_stages(schedule, frozen_parts):
    cell = Cell(model="mixed", firsts=(0, 1, 2, 3), pp=4, schedule=schedule)
    plans = {}
    for frozen in frozen_parts:
        graph = capture(initialise(Mixed(frozen), torch.float64), language_batch(GLOBAL_BATCH))
        plans[frozen] = graph, pipeline_plan(graph, cell)
    run_ranks(train_mixed, 4, plans)


def refuse(rank: int, graph: OpGraph, plan: Plan) -> None:
    with pytest.raises(PlanError, match="splits the backward, which would lose gradients"):
        parallelize(real("t5-small"), graph, plan)


def test_a_backward_that_cannot_be_split_is_refused():
    graph = traced("t5-small")
    cell = Cell(model="t5-small", firsts=(0, 4), schedule="zero_bubble")
    run_ranks(refuse, 2, graph, pipeline_plan(graph, cell))
