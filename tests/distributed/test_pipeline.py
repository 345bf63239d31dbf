"""Training in a pipeline is training on one device, whatever the schedule and the cuts."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from autoplan.plan import Plan
from autoplan.runtime.parallelize import parallelize
from autoplan.trace.graph import OpGraph
from tests.distributed.cases import GLOBAL_BATCH, graph_of, make_batches, make_model
from tests.distributed.greedy import greedy_regions
from tests.distributed.harness import run_ranks
from tests.distributed.plans import make_plan
from tests.distributed.training import (
    check_stages_equal,
    make_optimizer,
    train_alone,
    train_parallel,
)
from tests.parity.stages import stages_at

F64 = torch.float64


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One way to train one model; ``firsts`` are the items with which stages begin."""

    model: str
    firsts: tuple[int, ...]
    schedule: str = "1f1b"
    pp: int = 2
    dp: int = 1
    tp: int = 1
    zero: int = 0
    num_microbatches: int = 4
    optimizer: str = "adamw"
    dtype: torch.dtype = F64
    outermost: str = "pp"
    recompute: bool = False

    @property
    def world_size(self) -> int:
        return self.pp * self.dp * self.tp


def plan_of(graph: OpGraph, cell: Cell) -> Plan:
    recomputed = frozenset(b.path for b in graph.blocks) if cell.recompute else frozenset()
    return make_plan(
        graph.fingerprint,
        global_batch=GLOBAL_BATCH,
        pp=cell.pp,
        dp=cell.dp,
        tp=cell.tp,
        zero=cell.zero,
        num_microbatches=cell.num_microbatches,
        regions=greedy_regions(graph, cell.tp, recomputed),
        schedule=cell.schedule,
        stages=stages_at(graph, cell.firsts, cell.pp),
        outermost=cell.outermost,
    )


def run_cell(cell: Cell) -> None:
    graph = graph_of(cell.model, cell.dtype)
    batches = make_batches(cell.model, cell.dtype)
    model = make_model(cell.model, cell.dtype)
    pm = parallelize(model, graph, plan_of(graph, cell))
    got = train_parallel(pm, batches, make_optimizer(cell.optimizer, pm.parameters()))
    expected = train_alone(model, batches, make_optimizer(cell.optimizer, model.parameters()))
    check_stages_equal(got, expected, cell.dtype)


def run_cells(rank: int, cells: Sequence[Cell]) -> dict[Cell, str]:
    wrong = {}
    for cell in cells:
        try:
            run_cell(cell)
        except Exception:
            wrong[cell] = traceback.format_exc()
    return wrong


def check(cells: Sequence[Cell]) -> None:
    for cell in cells:
        graph_of(cell.model, cell.dtype)
    for wrong in run_ranks(run_cells, cells[0].world_size, cells, deadline_s=200):
        assert not wrong, "\n".join(f"{cell}\n{why}" for cell, why in wrong.items())


def test_two_ranks():
    check(
        [
            Cell(model="gpt", firsts=(0, 2), schedule="gpipe"),
            Cell(model="gpt", firsts=(0, 2)),
        ]
    )
