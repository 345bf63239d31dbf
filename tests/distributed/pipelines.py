"""Ways to train real models in a pipeline, and what must be equal of them."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from autoplan.plan import Plan
from autoplan.runtime.module import ParallelModule
from autoplan.runtime.parallelize import parallelize
from autoplan.trace.graph import OpGraph
from cost_models.schedules import PipelineShape, ScheduleName
from tests.distributed.cases import (
    GLOBAL_BATCH,
    graph_of,
    lowest_dtype,
    make_batches,
    make_model,
)
from tests.distributed.greedy import greedy_regions
from tests.distributed.harness import run_ranks
from tests.distributed.plans import make_plan
from tests.distributed.training import (
    Batches,
    check_stages_equal,
    make_optimizer,
    train_alone,
    train_parallel,
)
from tests.parity.stages import stages_at


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One way to train one model; ``firsts`` are the items with which stages begin."""

    model: str
    firsts: tuple[int, ...] = (0, 2)
    schedule: ScheduleName = "1f1b"
    pp: int = 2
    dp: int = 1
    tp: int = 1
    zero: int = 0
    num_microbatches: int = 4
    optimizer: str = "adamw"
    dtype: torch.dtype = torch.float64
    outermost: Literal["pp", "dp"] = "pp"
    recompute: bool = False
    replicas: int = 1

    @property
    def world_size(self) -> int:
        return self.pp * self.dp * self.tp


def pipeline_plan(graph: OpGraph, cell: Cell) -> Plan:
    shape = PipelineShape(
        schedule=cell.schedule,
        ranks=cell.pp,
        stages=len(cell.firsts),
        microbatches=cell.num_microbatches,
    )
    recomputed = frozenset(b.path for b in graph.blocks) if cell.recompute else frozenset()
    return make_plan(
        graph.fingerprint,
        global_batch=GLOBAL_BATCH,
        pp=cell.pp,
        dp=cell.dp,
        tp=cell.tp,
        zero=cell.zero,
        num_microbatches=cell.num_microbatches,
        precision="bf16" if cell.dtype == torch.bfloat16 else "fp32",
        regions=greedy_regions(graph, cell.tp, recomputed),
        schedule=cell.schedule,
        stages=stages_at(graph, cell.firsts, shape.rank_of),
        outermost=cell.outermost,
        replicas=cell.replicas,
    )


def parallel(cell: Cell) -> ParallelModule:
    graph = graph_of(cell.model, cell.dtype)
    stored = torch.float32 if cell.dtype == torch.bfloat16 else cell.dtype
    return parallelize(make_model(cell.model, stored), graph, pipeline_plan(graph, cell))


def run_cell(cell: Cell) -> None:
    """Trains on this rank and alone."""
    pm, model = parallel(cell), make_model(cell.model, cell.dtype)
    lowest = lowest_dtype(graph_of(cell.model, cell.dtype))
    compare(pm, model, make_batches(cell.model, cell.dtype), cell.optimizer, lowest)


def compare(
    pm: ParallelModule, model: nn.Module, batches: Batches, optimizer: str, lowest: torch.dtype
) -> None:
    """Trains a model in parallel and on one device, and checks what this rank's stages hold.

    Args:
        lowest: the lowest precision in which anything is computed.
    """
    got = train_parallel(pm, batches, make_optimizer(optimizer, pm.parameters()))
    expected = train_alone(model, batches, make_optimizer(optimizer, model.parameters()))
    check_stages_equal(got, expected, lowest)


def run_cells(rank: int, cells: Sequence[Cell]) -> dict[Cell, str]:
    """What went wrong, by cell."""
    wrong = {}
    for cell in cells:
        try:
            run_cell(cell)
        except Exception:
            wrong[cell] = traceback.format_exc()
    return wrong


def check(cells: Sequence[Cell]) -> None:
    """Trains cells of one world size on processes that they share."""
    for cell in cells:
        graph_of(cell.model, cell.dtype)
    for wrong in run_ranks(run_cells, cells[0].world_size, cells, deadline_s=280):
        assert not wrong, "\n".join(f"{cell}\n{why}" for cell, why in wrong.items())
