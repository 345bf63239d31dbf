"""Ranks are filled up to the limit at whichever moment of a step they are fullest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.search.pipeline.configs import Config
from autoplan.search.pipeline.item_prices import Elements
from autoplan.search.pipeline.whole import StageContent, value_of_whole
from autoplan.search.regions.column import Column
from autoplan.search.regions.menus import Crossing
from tests.unit.joint_families import ListedFamily, Way
from tests.unit.joint_problems import UNLIMITED_BYTES, JointProblem, cluster_named

_BLOCKS = 5
_CONFIG = Config(
    pp=1, dp=4, tp=1, zero=3, replicas=1, microbatch=1, num_microbatches=4,
    schedule=None, stages_per_rank=1, outermost="pp",
)  # fmt: skip


def _column(number: int, seconds: float, kept: float, passing: float, elements: float) -> Column:
    return Column(
        choices=(number,),
        forward_s=seconds,
        backward_input_s=seconds,
        backward_weight_s=seconds,
        kept_bytes=kept,
        recomputed_bytes=0.0,
        operator_bytes=passing,
        trained_elements=elements,
        frozen_elements=0.0,
    )


def _elements(of: float) -> Elements:
    return Elements(
        trained=of, frozen=0.0, least_trained=of, least_frozen=0.0, unit_trained=of,
        unit_frozen=0.0,
    )  # fmt: skip


def _problem(elements: float, tail: Column) -> JointProblem:
    """Blocks that keep much and are fast or the other way round, and a part behind them."""
    fast = _column(0, 1.0, 2e9, 1e9, elements)
    lean = _column(1, 1.3, 1e9, 1e9, elements)
    keys = ("block",) * _BLOCKS + ("root5",)
    columns = {"block": (fast, lean), "root5": (tail,)}
    none = Crossing(forward_bytes=0.0, backward_bytes=0.0)
    family = ListedFamily(
        keys=keys,
        is_block=(True,) * _BLOCKS + (False,),
        elements={"block": _elements(elements), "root5": _elements(tail.trained_elements)},
        ways=(Way(columns=columns, cuts=(none,) * _BLOCKS, tied=()),),
        shared_s=0.0,
    )
    return JointProblem(
        family=family,
        config=_CONFIG,
        cluster=cluster_named("dgx-h100"),
        optimizer="adamw",
        precision="bf16",
        input_bytes=0.0,
        limit_bytes=UNLIMITED_BYTES,
    )


@pytest.mark.parametrize(
    ("elements", "tail"),
    [
        pytest.param(4e8, _column(2, 1.0, 1e8, 8e9, 1e8), id="an operator behind the blocks"),
        pytest.param(4e8, _column(2, 1.0, 6e9, 5e9, 1e8), id="what it keeps"),
        pytest.param(2e9, _column(2, 1.0, 1e8, 5e8, 1e8), id="gradients of a block"),
        pytest.param(4e8, _column(2, 1.0, 1e8, 5e8, 3e9), id="gradients behind the blocks"),
    ],
)
def test_as_many_blocks_are_fast_as_fit(elements, tail):
    problem = _problem(elements, tail)
    fast, lean = problem.family.ways[0].columns["block"]
    plans = [(*[fast] * many, *[lean] * (_BLOCKS - many), tail) for many in range(_BLOCKS + 1)]
    values = [
        value_of_whole(problem.costs(0), [StageContent(first=0, columns=columns)])
        for columns in plans
    ]
    for peak in (value.memory[0].total for value in values):
        found = replace(problem, limit_bytes=peak).search().finish()
        assert found is not None
        fastest = min(value.step_s for value in values if value.memory[0].total <= peak)
        assert found.value.step_s == pytest.approx(fastest)
