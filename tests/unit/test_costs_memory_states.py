"""Model states against the ZeRO paper, round figures of the literature and their own laws."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.memory import (
    ModelStates,
    Moment,
    StoredBytes,
    model_states,
    routed_tokens,
    worst_moment,
)
from cost_models.zero import ZERO_STAGES, zero_stage

MIXED_ADAM = StoredBytes(weight=2, master=4, gradient=2, gathered=2, optimizer=8)
FSDP_ADAM = StoredBytes(weight=4, master=0, gradient=4, gathered=2, optimizer=8)
FP32_ADAM = StoredBytes(weight=4, master=0, gradient=4, gathered=4, optimizer=8)

# Rajbhandari et al. 2020, table 1: GB of model states by ranks, for stages 1, 2 and 3.
TABLE_1 = {
    7.5: {
        4: (52.5, 41.3, 30), 16: (35.6, 21.6, 7.5), 64: (31.4, 16.6, 1.88),
        256: (30.4, 15.4, 0.47), 1024: (30.1, 15.1, 0.12),
    },
    128: {
        4: (896, 704, 512), 16: (608, 368, 128), 64: (536, 284, 32),
        256: (518, 263, 8), 1024: (513, 257, 2),
    },
    1000: {
        4: (7000, 5500, 4000), 16: (4750, 2875, 1000), 64: (4187, 2218, 250),
        256: (4046, 2054, 62.5), 1024: (4011, 2013, 15.6),
    },
}  # fmt: skip
CELLS = [
    (billions, ranks, stage, figure)
    for billions, rows in TABLE_1.items()
    for ranks, figures in rows.items()
    for stage, figure in enumerate(figures, start=1)
]


@pytest.mark.parametrize(("billions", "ranks", "stage", "figure"), CELLS)
def test_zero_paper_table_1(billions, ranks, stage, figure):
    """Exact up to the last digit that the paper prints."""
    states = model_states(billions * 1e9, MIXED_ADAM, ZERO_STAGES[stage], ranks)
    last_digit = 10.0 ** -len(str(figure).partition(".")[2])
    assert states.total / 1e9 == pytest.approx(figure, abs=last_digit)


def test_sixteen_bytes_a_parameter_without_sharding():
    assert model_states(1, MIXED_ADAM, ZERO_STAGES[0], 64).total == 16


def test_200b_dense_model():
    """The literature's round figures: 754 GiB of fp32 weights, 3,500 GB to train with Adam."""
    states = model_states(200e9, FP32_ADAM, ZERO_STAGES[0], 1)
    assert states.parameters / 2**30 == pytest.approx(754, rel=0.02)
    assert states.total / 1e9 == pytest.approx(3500, rel=0.1)


WEIGHTS = st.integers(1, 10**12)
STORED = st.sampled_from([MIXED_ADAM, FSDP_ADAM, FP32_ADAM])


@settings(deadline=None, max_examples=60)
@given(weights=WEIGHTS, stored=STORED, shards=st.integers(1, 4096))
def test_stage_3_is_an_exact_share_of_stage_0(weights, stored, shards):
    whole = model_states(weights, stored, ZERO_STAGES[0], shards).total
    sharded = model_states(weights, stored, ZERO_STAGES[3], shards).total
    assert sharded == pytest.approx(whole / shards)


@settings(deadline=None, max_examples=60)
@given(
    weights=WEIGHTS, stored=STORED, shards=st.integers(1, 512), stage=st.integers(0, 3),
    pipeline=st.booleans(), accumulates=st.booleans(),
)  # fmt: skip
def test_more_shards_never_take_more(weights, stored, shards, stage, pipeline, accumulates):
    row = zero_stage(stage, pipeline=pipeline, accumulates=accumulates)
    fewer, more = (model_states(weights, stored, row, n).total for n in (shards, 2 * shards))
    assert more <= fewer


def test_a_pipeline_holds_whole_gradients_and_gathered_weights_under_stage_3():
    """405B on 512 devices (tp 8, pp 8, dp 8): fp32 gradients and bf16 copies of 6.3e9 weights."""
    row = zero_stage(3, pipeline=True, accumulates=True)
    states = model_states(6.3e9, FSDP_ADAM, row, 8)
    assert states == ModelStates(
        parameters=6.3e9 * 4 / 8,
        master_weights=0,
        gradients=6.3e9 * 4,
        optimizer_state=6.3e9,
        gathered_parameters=6.3e9 * 2,
    )


def test_replicas_of_hybrid_sharding_do_not_shard():
    """64 ranks in 8 replicas of 8 hold what 8 ranks hold."""
    one_replica = model_states(1e9, FSDP_ADAM, ZERO_STAGES[3], 64 // 8)
    assert one_replica.total == pytest.approx(16e9 / 8)


def test_experts_see_routed_tokens_not_all():
    """Mixtral on 8 expert ranks: two of eight experts a token, so 2 of every 8 of the group's."""
    group = 8 * 4096
    assert routed_tokens(group, experts_per_token=2, expert_ranks=8) == 2 * 4096
    dense = group * 8 / 8
    assert routed_tokens(group, experts_per_token=2, expert_ranks=8) < dense
    dropped = routed_tokens(group, experts_per_token=2, expert_ranks=8, load_factor=1.25)
    assert dropped == 2.5 * 4096


def test_the_moment_that_takes_most_counts():
    states = model_states(10, FSDP_ADAM, ZERO_STAGES[0], 1)
    backward = Moment(activations=70, transient=5)
    step = Moment(transient=40)
    worst = worst_moment(states, (step, backward))
    assert worst.total == 160 + 75
    assert (worst.activations, worst.transient, worst.parameters) == (70, 5, 40)
    with pytest.raises(ValueError, match="at least one moment"):
        worst_moment(states, ())


def test_numbers_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match="no such states"):
        model_states(1e9, FSDP_ADAM, ZERO_STAGES[0], 0)
    with pytest.raises(ValueError, match="cannot route"):
        routed_tokens(1, experts_per_token=0, expert_ranks=1)


def resnet50_products():
    """Weights of each convolution (and the classifier), and elements of its output per image."""
    found = [(7 * 7 * 3 * 64, 64 * 112**2)]
    width_in, side = 64, 56
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for block in range(blocks):
            shrinks = stage > 0 and block == 0
            side_out = side // 2 if shrinks else side
            found.append((width_in * width, width * side**2))
            found.append((9 * width * width, width * side_out**2))
            found.append((width * 4 * width, 4 * width * side_out**2))
            if block == 0:
                found.append((width_in * 4 * width, 4 * width * side_out**2))
            width_in, side = 4 * width, side_out
    return found


def test_static_memory_of_resnet50_is_a_small_part_of_its_peak():
    """Weights, gradients and momentum against what one batch of 64 images keeps in fp32.

    Each normalization keeps its input, a convolution's output, and each ReLU its output, which is
    the next convolution's input.
    """
    products = resnet50_products()
    channels = [64] + [
        64 * 2**stage * k
        for stage, blocks in enumerate((3, 4, 6, 3))
        for block in range(blocks)
        for k in (1, 1, 4, *([4] if block == 0 else []))
    ]
    weights = sum(count for count, _ in products) + 2 * sum(channels) + 2048 * 1000 + 1000
    assert weights == 25_557_032
    momentum = StoredBytes(weight=4, master=0, gradient=4, gathered=4, optimizer=4)
    static = model_states(weights, momentum, ZERO_STAGES[0], 1).total
    kept = 64 * 4 * 2 * sum(outputs for _, outputs in products)
    assert static / 1e6 == pytest.approx(307, rel=0.01)
    assert static < kept / 10
