"""Values of whole plans against closed forms and memory added up by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.search.pipeline.configs import Config
from autoplan.search.pipeline.dealing import stages_of
from autoplan.search.pipeline.item_prices import Elements
from autoplan.search.pipeline.whole import WholeValue, value_of_whole
from autoplan.search.regions.column import Column
from autoplan.search.regions.menus import Crossing
from cost_models.collectives import collective_s
from hardware_profiles.spec import ClusterSpec
from tests.unit.joint_families import ListedFamily, Way
from tests.unit.joint_problems import UNLIMITED_BYTES, JointProblem, cluster_named

CLUSTER = cluster_named("dgx-h100")
WORKSPACE = CLUSTER.device.workspace_bytes
ELEMENTS = 40e6
COLUMN = Column(
    choices=(0,),
    forward_s=2e-3,
    backward_input_s=3e-3,
    backward_weight_s=1e-3,
    kept_bytes=5e6,
    recomputed_bytes=0.0,
    operator_bytes=7e8,
    trained_elements=ELEMENTS,
    frozen_elements=0.0,
)
FORWARD, INPUT, WEIGHT = 2e-3, 3e-3, 1e-3
BACKWARD = INPUT + WEIGHT
ADAMW_FP32_BYTES = 16
"""Weight, gradient and two moments."""
BUCKET_BYTES = 25 * 2**20
"""Of gradients that are summed by one message, at most."""
ALONE = Config(
    pp=1, dp=1, tp=1, zero=0, replicas=1, microbatch=1, num_microbatches=1, schedule=None,
    stages_per_rank=1, outermost="pp",
)  # fmt: skip


def uniform(config: Config, items: int, *, roots: tuple[int, ...] = ()) -> JointProblem:
    """Blocks that are all alike; some items may be parts of the root instead."""
    each = Elements(
        trained=ELEMENTS, frozen=0.0, least_trained=ELEMENTS, least_frozen=0.0,
        unit_trained=ELEMENTS * max(1, len(roots)), unit_frozen=0.0,
    )  # fmt: skip
    keys = tuple(f"root{n}" if n in roots else "block" for n in range(items))
    return JointProblem(
        family=ListedFamily(
            keys=keys,
            is_block=tuple(n not in roots for n in range(items)),
            elements=dict.fromkeys(keys, each),
            ways=(
                Way(
                    columns=dict.fromkeys(keys, (COLUMN,)),
                    cuts=(Crossing(forward_bytes=0.0, backward_bytes=0.0),) * (items - 1),
                    tied=(),
                ),
            ),
            shared_s=0.0,
        ),
        config=config,
        cluster=CLUSTER,
        optimizer="adamw",
        precision="fp32",
        input_bytes=0.0,
        limit_bytes=UNLIMITED_BYTES,
    )


def even(problem: JointProblem) -> WholeValue:
    """The plan whose ranks have as many items each."""
    items, ranks = len(problem.family.keys), problem.config.pp
    cuts = [items * rank // ranks for rank in range(ranks + 1)]
    columns = [[COLUMN] * (items // ranks) for _ in range(ranks)]
    return value_of_whole(problem.costs(0), stages_of(problem.row, cuts, columns))


def optimizer_s(items: int, shards: int = 1) -> float:
    """Torch's multi-tensor AdamW moves 84 bytes for each element."""
    device = CLUSTER.device
    rate = device.memory_bytes_per_s * device.memory_efficiency
    return items * ELEMENTS * 84 / shards / rate


@pytest.mark.parametrize(("ranks", "count"), [(1, 1), (1, 5), (2, 2), (2, 7), (3, 4), (4, 9)])
def test_uniform_1f1b(ranks, count):
    config = replace(ALONE, pp=ranks, num_microbatches=count, schedule="1f1b")
    value = even(uniform(config, 2 * ranks))
    busy_s = (count + ranks - 1) * 2 * (FORWARD + BACKWARD)
    assert value.step_s == pytest.approx(busy_s + optimizer_s(2))
    for rank, memory in enumerate(value.memory):
        held = min(count, ranks - rank) * 2 * COLUMN.kept_bytes
        states = 2 * ELEMENTS * ADAMW_FP32_BYTES
        assert memory.total == states + held + COLUMN.operator_bytes + WORKSPACE


@pytest.mark.parametrize(("ranks", "count"), [(2, 2), (2, 6), (3, 6), (4, 4)])
def test_uniform_zero_bubble(ranks, count):
    config = replace(ALONE, pp=ranks, num_microbatches=count, schedule="zero_bubble")
    value = even(uniform(config, 2 * ranks))
    busy_s = count * (FORWARD + INPUT + WEIGHT) + (ranks - 1) * (FORWARD + INPUT - WEIGHT)
    end_s = value.times.makespan_s
    assert end_s == pytest.approx(2 * busy_s)
    assert value.step_s == pytest.approx(2 * busy_s + optimizer_s(2))


@pytest.mark.parametrize(("schedule", "added_s"), [("zero_bubble", 1e-4), ("1f1b", 0)])
def test_gradients_that_are_taken_apart_take_the_host_some_seconds(schedule, added_s):
    config = replace(ALONE, pp=2, num_microbatches=4, schedule=schedule)
    problem = uniform(config, 4)
    device = replace(CLUSTER.device, split_gradient_s=1e-4)  # of one parameter in all
    found = even(replace(problem, cluster=replace(CLUSTER, device=device)))
    for slower, plain in zip(found.loads, even(problem).loads, strict=True):
        assert slower.backward_weight_s - plain.backward_weight_s == pytest.approx(added_s / 2)
        assert slower.backward_window_s - plain.backward_window_s == pytest.approx(added_s / 2)


@pytest.mark.parametrize("count", [2, 4, 6])
def test_uniform_interleaving(count):
    config = replace(
        ALONE, pp=2, num_microbatches=count, schedule="interleaved_1f1b", stages_per_rank=2
    )
    value = even(uniform(config, 8))
    each_s = 2 * (FORWARD + BACKWARD)
    assert value.times.makespan_s == pytest.approx((2 * count + 1) * each_s)
    assert value.step_s == pytest.approx((2 * count + 1) * each_s + optimizer_s(4))


def sums_s(ranks: int, nbytes: float, cluster: ClusterSpec = CLUSTER) -> float:
    """Sums of so many bytes of gradients, whose messages have the largest buckets' rate."""
    bucket_s = collective_s("all_reduce", BUCKET_BYTES, ranks, ranks, cluster)
    return nbytes / BUCKET_BYTES * bucket_s


def shown_s(messages_s: float, window_s: float) -> float:
    return messages_s - CLUSTER.overlap_efficiency * min(messages_s, window_s)


def test_heads_and_tails_of_sharded_states():
    config = replace(ALONE, pp=2, dp=4, zero=1, num_microbatches=3, schedule="1f1b")
    value = even(uniform(config, 6, roots=(0,)))
    nbytes = 4 * ELEMENTS
    gather_s = collective_s("all_gather", nbytes, 4, 4, CLUSTER)
    reduce_s = collective_s("reduce_scatter", nbytes, 4, 4, CLUSTER)
    head_s = gather_s + shown_s(2 * gather_s, 3 * FORWARD)
    blocks_head_s = shown_s(3 * gather_s, 3 * FORWARD)
    tail_s = reduce_s + shown_s(2 * reduce_s, 3 * BACKWARD)
    assert value.seconds[0].head_s == pytest.approx(head_s)
    assert value.seconds[1].head_s == pytest.approx(blocks_head_s)
    busy_s = (3 + 2 - 1) * 3 * (FORWARD + BACKWARD)
    step_s = max(head_s, blocks_head_s) + busy_s + tail_s + optimizer_s(3, shards=4)
    assert value.step_s == pytest.approx(step_s)


@pytest.mark.parametrize("blocks", [2, 40])
@pytest.mark.parametrize("slower", [1, 20])
def test_gradients_are_summed_beside_the_last_backward_but_for_the_last_bucket(blocks, slower):
    config = replace(ALONE, dp=8, num_microbatches=2)
    problem = uniform(config, blocks)
    link = replace(CLUSTER.intra_node, bytes_per_s=CLUSTER.intra_node.bytes_per_s / slower)
    cluster = replace(CLUSTER, intra_node=link)
    value = even(replace(problem, cluster=cluster))
    bucket_s, sum_s = (
        sums_s(8, nbytes, cluster) for nbytes in (BUCKET_BYTES, blocks * ELEMENTS * 4)
    )
    tail_s = bucket_s + shown_s(sum_s - bucket_s, blocks * BACKWARD)
    busy_s = 2 * blocks * (FORWARD + BACKWARD)
    assert value.seconds[0].tail_s == pytest.approx(tail_s)
    assert value.step_s == pytest.approx(busy_s + tail_s + optimizer_s(blocks))
    assert value.memory[0].communication_buffers == 0  # gradients are made in their buckets


def test_half_of_a_small_models_gradients_are_summed_behind_its_backward():
    problem = uniform(replace(ALONE, dp=8), 2)
    small = replace(COLUMN, trained_elements=3e6)
    value = value_of_whole(problem.costs(0), stages_of(problem.row, [0, 2], [[small, small]]))
    sum_s = sums_s(8, 2 * 3e6 * 4)
    assert value.seconds[0].tail_s == pytest.approx(sum_s / 2 + shown_s(sum_s / 2, 2 * BACKWARD))


def test_beside_batch_statistics_gradients_are_summed_behind_the_backward():
    value = even(replace(uniform(replace(ALONE, dp=8), 2), syncs_statistics=True))
    assert value.seconds[0].tail_s == pytest.approx(sums_s(8, 2 * ELEMENTS * 4))


@pytest.mark.parametrize(("schedule", "bucket"), [("1f1b", 0), ("zero_bubble", BUCKET_BYTES)])
def test_in_a_pipeline_gradients_are_summed_behind_the_last_backward(schedule, bucket):
    config = replace(ALONE, pp=2, dp=4, num_microbatches=2, schedule=schedule)
    problem = replace(uniform(config, 4), optimizer="lamb")  # whose step passes nothing
    lean = replace(COLUMN, operator_bytes=0.0, kept_bytes=1.0)
    stages = stages_of(problem.row, [0, 2, 4], [[lean, lean]] * 2)
    value = value_of_whole(problem.costs(0), stages)
    for seconds, memory in zip(value.seconds, value.memory, strict=True):
        assert seconds.tail_s == pytest.approx(sums_s(4, 2 * ELEMENTS * 4))
        assert memory.communication_buffers == bucket


def test_weights_gathered_at_each_use():
    config = replace(ALONE, dp=8, zero=3, num_microbatches=2)
    value = even(uniform(config, 5))
    nbytes = 4 * ELEMENTS
    gather_s = 5 * collective_s("all_gather", nbytes, 8, 8, CLUSTER)
    reduce_s = 5 * collective_s("reduce_scatter", nbytes, 8, 8, CLUSTER)
    forward_s = 5 * FORWARD + shown_s(gather_s, 5 * FORWARD)
    backward_s = 5 * BACKWARD + shown_s(gather_s + reduce_s, 5 * BACKWARD)
    assert value.step_s == pytest.approx(2 * (forward_s + backward_s) + optimizer_s(5, shards=8))
    memory = value.memory[0]
    assert memory.parameters == 5 * ELEMENTS * 4 / 8
    assert memory.gathered_parameters == 2 * ELEMENTS * 4


def test_a_tied_parameter_is_stored_and_moved_once():
    problem = uniform(replace(ALONE, dp=2, zero=1), 3, roots=(0, 2))
    way = replace(problem.family.ways[0], tied=(((0, 2), ELEMENTS),))
    tied = replace(problem, family=replace(problem.family, ways=(way,)))
    apart, once = even(problem), even(tied)
    assert once.loads[0].root.trained_elements == ELEMENTS
    assert apart.loads[0].root.trained_elements == 2 * ELEMENTS
    assert apart.memory[0].parameters - once.memory[0].parameters == 4 * ELEMENTS / 2
    both_s = collective_s("all_gather", 2 * 4 * ELEMENTS, 2, 2, CLUSTER)
    one_s = collective_s("all_gather", 4 * ELEMENTS, 2, 2, CLUSTER)
    assert apart.head_s - once.head_s == pytest.approx(both_s - one_s)
