"""Outputs without a loss, in parallel and on one device."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autoplan.plan import Plan
from autoplan.runtime.comparison import RTOL
from autoplan.runtime.parallelize import parallelize
from autoplan.trace.graph import OpGraph
from autoplan.trace.huggingface import disable_caches
from cost_models.schedules import PipelineShape, ScheduleName
from tests.distributed.cases import GLOBAL_BATCH, lowest_dtype
from tests.distributed.greedy import greedy_regions
from tests.distributed.harness import run_ranks
from tests.distributed.plans import make_plan
from tests.families import random_batch, real, tiny, traced
from tests.parity.stages import stages_at


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A twin of a family under a plan; ``firsts`` are the items with which stages begin."""

    family: str
    dp: int = 1
    tp: int = 1
    zero: int = 0
    num_microbatches: int = 2
    firsts: tuple[int, ...] = ()
    schedule: ScheduleName = "1f1b"
    pp: int = 1


def check(cells: Sequence[Cell]) -> None:
    """Evaluates cells of one world size on processes that they share."""
    plans = {cell: (traced(cell.family), _plan(traced(cell.family), cell)) for cell in cells}
    world = cells[0].pp * cells[0].dp * cells[0].tp
    for wrong in run_ranks(_evaluate_all, world, plans, deadline_s=280):
        assert not wrong, "\n".join(f"{cell}\n{why}" for cell, why in wrong.items())


def inputs_of(family: str, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without labels; what they are to a decoder is given instead."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    model: Any = real(family)
    if "decoder_input_ids" not in inputs and model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = batch["labels"].clamp(min=0)
    return inputs


def assert_same_outputs(
    got: Mapping[str, Tensor], expected: Mapping[str, Tensor], lowest: torch.dtype
) -> None:
    """Within the tolerances of the lowest dtype that computes."""
    assert type(got) is type(expected)
    assert list(got) == list(expected)
    for name, value in expected.items():
        assert got[name].shape == value.shape, name
        error = (got[name] - value).abs().max().item()
        assert error <= RTOL[lowest] * value.abs().max().item(), f"{name} is off by {error}"


def _plan(graph: OpGraph, cell: Cell) -> Plan:
    stages = ()
    if cell.pp > 1:
        shape = PipelineShape(
            schedule=cell.schedule, ranks=cell.pp, stages=len(cell.firsts),
            microbatches=cell.num_microbatches,
        )  # fmt: skip
        stages = stages_at(graph, cell.firsts, shape.rank_of)
    return make_plan(
        graph.fingerprint, global_batch=GLOBAL_BATCH, pp=cell.pp, dp=cell.dp, tp=cell.tp,
        zero=cell.zero, num_microbatches=cell.num_microbatches,
        regions=greedy_regions(graph, cell.tp), stages=stages,
        schedule=cell.schedule if stages else "none",
    )  # fmt: skip


def _evaluate_all(rank: int, plans: Mapping[Cell, tuple[OpGraph, Plan]]) -> dict[Cell, str]:
    wrong = {}
    for cell, (graph, plan) in plans.items():
        try:
            _evaluate(cell, graph, plan)
        except Exception:
            wrong[cell] = traceback.format_exc()
    return wrong


def _evaluate(cell: Cell, graph: OpGraph, plan: Plan) -> None:
    """The planned samples; after a step, others in number on each data-parallel rank."""
    torch.manual_seed(1)
    batch = random_batch(tiny(cell.family), GLOBAL_BATCH, torch.float64)
    alone = real(cell.family)
    disable_caches(alone)
    pm = parallelize(alone, graph, plan)
    inputs, own = inputs_of(cell.family, batch), GLOBAL_BATCH // pm.data_world

    def compare(rows: int) -> None:
        part = {name: value[pm.data_rank * own :][:rows] for name, value in inputs.items()}
        with torch.no_grad():
            assert_same_outputs(pm.eval()(**part), alone.eval()(**part), lowest_dtype(graph))

    compare(own)
    pm.train().train_step(pm.shard_batch(batch))
    alone.train()(**batch).loss.backward()
    for module in (pm, alone):
        torch.optim.SGD(module.parameters(), lr=0.1).step()
    compare(3 - pm.data_rank)
