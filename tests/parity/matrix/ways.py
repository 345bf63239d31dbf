"""The ways to train of the matrix, and the plan that a family has of each."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from autoplan.codegen.pipeline import emit_program
from autoplan.codegen.runnable import obstacle
from autoplan.errors import AutoplanError
from autoplan.plan import Plan, StagePlan
from autoplan.runtime.pipeline import shape_of
from autoplan.trace.graph import OpGraph
from autoplan.trace.stack import stack_of
from cost_models.schedules import PipelineShape, ScheduleName
from tests.distributed.greedy import greedy_regions
from tests.distributed.plans import make_plan
from tests.parity.again import regions_again
from tests.parity.matrix.families import FAMILIES, ROWS, graph_of
from tests.parity.stages import stages_at

EAGER, SEED = "the model itself", 3


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to train.

    Attributes:
        blocks_again: whether all blocks run again in the backward.
        operators_again: whether operators drawn at random do.
        same_bits_as: another way of as many ranks, whose gradients it has to the bit.
    """

    pp: int = 1
    dp: int = 1
    tp: int = 1
    zero: int = 0
    microbatches: int = 2
    schedule: ScheduleName = "none"
    stages: int = 0
    replicas: int = 1
    blocks_again: bool = False
    operators_again: bool = False
    same_bits_as: str | None = None

    @property
    def world_size(self) -> int:
        return self.pp * self.dp * self.tp


WAYS = {
    "one device": Way(microbatches=1, same_bits_as=EAGER),
    "dp2": Way(dp=2),
    "dp2, ZeRO 3, blocks again": Way(dp=2, zero=3, blocks_again=True),
    "tp2": Way(tp=2),
    "tp2, blocks again": Way(tp=2, blocks_again=True, same_bits_as="tp2"),
    "pp2": Way(pp=2, stages=2, schedule="1f1b", microbatches=4),
    "dp2 x tp2": Way(dp=2, tp=2),
    "dp2 x tp2, ZeRO 1": Way(dp=2, tp=2, zero=1),
    "dp2 x tp2, ZeRO 2": Way(dp=2, tp=2, zero=2),
    "dp2 x tp2, ZeRO 3": Way(dp=2, tp=2, zero=3),
    "dp2 x tp2, ZeRO 3, once more": Way(dp=2, tp=2, zero=3, same_bits_as="dp2 x tp2, ZeRO 3"),
    "dp2 x tp2, ZeRO 1, operators again": Way(
        dp=2, tp=2, zero=1, operators_again=True, same_bits_as="dp2 x tp2, ZeRO 1"
    ),
    "tp4": Way(tp=4),
    "dp4 in 2 replicas, ZeRO 3": Way(dp=4, zero=3, replicas=2),
    "pp2 x tp2": Way(pp=2, tp=2, stages=2, schedule="1f1b", microbatches=4),
    "pp2 x dp2, ZeRO 1": Way(pp=2, dp=2, zero=1, stages=2, schedule="1f1b"),
    "pp2 x tp2, interleaved": Way(
        pp=2, tp=2, stages=4, schedule="interleaved_1f1b", microbatches=4
    ),
    "pp2 x tp2, interleaved, operators again": Way(
        pp=2, tp=2, stages=4, schedule="interleaved_1f1b", microbatches=4, operators_again=True,
        same_bits_as="pp2 x tp2, interleaved",
    ),
    "pp2 x dp2 x tp2, ZeRO 1": Way(pp=2, dp=2, tp=2, zero=1, stages=2, schedule="1f1b"),
}  # fmt: skip


def plan_of(family: str, way: Way) -> Plan:
    """The plan of a family, split over tp as people would by hand.

    One that norms the batch has it in one piece.
    """
    graph = graph_of(family)
    microbatches = 1 if FAMILIES[family].norms_the_batch else way.microbatches
    return plan_for(graph, replace(way, microbatches=microbatches))


def plan_for(graph: OpGraph, way: Way) -> Plan:
    whole = graph.at_batch(ROWS)
    recomputed = frozenset(block.path for block in graph.blocks if way.blocks_again)
    regions = greedy_regions(whole, way.tp, recomputed)
    if way.operators_again:
        regions = regions_again(whole, regions, random.Random(SEED))
    return make_plan(
        graph.fingerprint,
        global_batch=ROWS,
        pp=way.pp,
        dp=way.dp,
        tp=way.tp,
        zero=way.zero,
        num_microbatches=way.microbatches,
        regions=regions,
        schedule=way.schedule,
        stages=_stages(whole, way),
        replicas=way.replicas,
    )


def refusal(family: str, way: Way) -> str | None:
    """Why autoplan does not run a family that way; None where it does."""
    return refusal_of(graph_of(family), lambda: plan_of(family, way))


def refusal_of(graph: OpGraph, made: Callable[[], Plan]) -> str | None:
    """Why autoplan does not make or run a plan of a graph; None where it does."""
    try:
        plan = made()
        reason = obstacle(graph, plan)
        if reason is None:
            if plan.stages:
                shape_of(plan)
            emit_program(graph.at_batch(ROWS), plan)
    except AutoplanError as error:
        return str(error)
    return reason


def _stages(graph: OpGraph, way: Way) -> tuple[StagePlan, ...]:
    """Stages of about as many items of the model each; fewer where it has fewer items."""
    if not way.stages:
        return ()
    items = len(stack_of(graph).items)
    shape = PipelineShape(
        schedule=way.schedule, ranks=way.pp, stages=way.stages, microbatches=way.microbatches
    )
    firsts = sorted({index * items // way.stages for index in range(way.stages)})
    return stages_at(graph, firsts, shape.rank_of)
