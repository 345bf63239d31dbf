"""Memory of a rank is that of its worst moment, each put together by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.search.pipeline.loads import Load, Placed, load_of
from autoplan.search.pipeline.rank_memory import RankMemory
from autoplan.search.regions.column import Column
from cost_models.memory import WeightBytes, weight_bytes
from cost_models.zero import ZERO_STAGES, zero_stage

SHARDS, BLOCK, HEAD, KEPT, INPUTS = 4, 1000, 600, 50, 7
COLUMN = Column(
    choices=(), forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0, kept_bytes=KEPT,
    recomputed_bytes=0.0, operator_bytes=30, trained_elements=BLOCK, frozen_elements=0,
)  # fmt: skip
LAST = replace(COLUMN, kept_bytes=400, operator_bytes=5000, trained_elements=HEAD)


def memory_of(each: WeightBytes, **changes) -> RankMemory:
    memory = RankMemory(
        trained=each, frozen=each, fills_buckets=False, reduces_each=False, keeps_sums=False,
        buffer_bytes=0, input_bytes=INPUTS, workspace_bytes=0, limit_bytes=1e9,
    )  # fmt: skip
    return replace(memory, **changes)


def stage(*, head: Column | None = None) -> Load:
    """Two blocks, and what is behind them."""
    blocks = Placed(column=COLUMN, count=2, is_block=True)
    behind = [] if head is None else [Placed(column=head, count=1, is_block=False, is_tail=True)]
    return load_of([blocks, *behind])


def once() -> WeightBytes:
    """Weights gathered once and gradients reduced once a step, in bf16."""
    at = zero_stage(1, pipeline=True, accumulates=True)
    return weight_bytes(precision="bf16", optimizer="adamw", dp=SHARDS, stage=at)


def each_time() -> WeightBytes:
    return weight_bytes(precision="bf16", optimizer="adamw", dp=SHARDS, stage=ZERO_STAGES[3])


def states(elements: float) -> float:
    """fp32 weights and two moments in shards, fp32 gradients and bf16 copies whole."""
    return elements * (12 / SHARDS + 4 + 2)


def test_gradients_of_a_block_stand_beside_all_activations():
    held = 3 * 2 * KEPT
    found = memory_of(once()).breakdown([stage()], held)
    backward = held + 30 + 2 * BLOCK
    reduction = (4 - 2) * BLOCK
    assert found.total == states(2 * BLOCK) + INPUTS + max(backward, reduction)


@pytest.mark.parametrize("passing", [10, 3000, 9000])
def test_the_tail_goes_before_the_blocks(passing):
    head = replace(LAST, operator_bytes=passing)
    held = 2 * KEPT + head.kept_bytes
    found = memory_of(once()).breakdown([stage(head=head)], held)
    of_tail = held + passing
    of_blocks = 2 * KEPT + 30 + 2 * BLOCK + 2 * HEAD
    reduction = (4 - 2) * BLOCK
    expected = max(of_tail, of_blocks, reduction)
    assert found.total == states(2 * BLOCK + HEAD) + INPUTS + expected


def test_sums_of_replicas_stay_until_the_backward_ends():
    head, held = replace(LAST, operator_bytes=0), 2 * KEPT + LAST.kept_bytes
    apart = memory_of(each_time(), reduces_each=True)
    kept = replace(apart, keeps_sums=True)
    load, elements = stage(head=head), 2 * BLOCK + HEAD
    shards = elements * 16 / SHARDS
    waiting = (2 + 4) * BLOCK - 2 * KEPT + 2 * HEAD
    gathered = 2 * (HEAD + 2 * BLOCK)
    without = apart.breakdown([load], held).total
    assert without == shards + gathered + INPUTS + 2 * KEPT + 30 + waiting
    sums = 4 * elements / SHARDS
    assert kept.breakdown([load], held).total == without - 2 * KEPT + sums


@pytest.mark.parametrize(
    ("kept", "beside"),
    [
        pytest.param(50, (2 + 4) * BLOCK - 2 * 50, id="when the second block ends"),
        pytest.param(3000, 4 * BLOCK - 3000, id="when the second begins"),
        pytest.param(9000, 0, id="when the first begins"),
    ],
)
def test_gradients_that_are_reduced_come_while_activations_go(kept, beside):
    blocks = Placed(column=replace(COLUMN, kept_bytes=kept), count=2, is_block=True)
    memory = memory_of(each_time(), reduces_each=True)
    found = memory.breakdown([load_of([blocks])], 2 * kept)
    shards, gathered = 2 * BLOCK * 16 / SHARDS, 2 * 2 * BLOCK
    assert found.total == shards + gathered + INPUTS + 2 * kept + 30 + beside


def test_nobody_to_send_to():
    each = weight_bytes(precision="fp32", optimizer="adamw", dp=1, stage=ZERO_STAGES[0])
    load = stage(head=replace(LAST, operator_bytes=20_000))
    found = memory_of(each).breakdown([load], 500)
    assert found.total == (2 * BLOCK + HEAD) * 16 + INPUTS + 500 + 20_000


def test_gradients_that_are_moved_into_buckets_behind_the_backward_have_one_beside_them():
    at = zero_stage(0, pipeline=True, accumulates=True)
    each = weight_bytes(precision="fp32", optimizer="adamw", dp=SHARDS, stage=at)
    column = replace(COLUMN, trained_elements=10**7)
    load = load_of([Placed(column=column, count=2, is_block=True)])
    memory = memory_of(each, most_step_bytes=0)
    in_place = memory.breakdown([load], 2 * KEPT)
    moved = replace(memory, fills_buckets=True).breakdown([load], 2 * KEPT)
    assert in_place.total == 2 * 10**7 * 16 + INPUTS + 2 * KEPT + 30
    assert moved.total == 2 * 10**7 * 16 + INPUTS + 25 * 2**20


def test_an_optimizer_that_steps_one_tensor_after_the_other_passes_that_much_at_most():
    each = replace(each_time(), optimizer_step=10**6)
    whole = memory_of(each).breakdown([stage()], 0)
    by_tensor = memory_of(each, most_step_bytes=4 * 10**5).breakdown([stage()], 0)
    assert whole.transient == 2 * BLOCK * 10**6
    assert by_tensor.transient == 4 * 10**5
