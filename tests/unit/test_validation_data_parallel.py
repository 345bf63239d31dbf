"""Exchange of weights and gradients between data-parallel ranks, against sums done by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.validation.ranks.held_states import held_states, updated_weights
from autoplan.validation.ranks.stages import Chunk, chunks
from autoplan.validation.setups.setup import Setup
from autoplan.validation.step.clock import Clock
from autoplan.validation.step.data_parallel import BUCKETS, Beside, Exchange, exchange
from autoplan.validation.step.step_time import step_of
from cost_models.collectives import collective_s
from hardware_profiles.load import load
from tests.unit.memory_setups import FSDP2, LITGPT, LLAMA3_8B, MEGATRON, setup

A100 = load("dgx-a100-80g")
CORE = replace(MEGATRON, overlaps_reductions=True, overlaps_gathers=True)
BESIDE = Beside(layer_forward_s=0.01, layer_backward_s=0.02, forward_s=0.3, backward_s=0.6)
CHUNK = Chunk(layers=31, embedding=True, head=True)
WEIGHTS = 32 * 200e6
UNIT = 200e6


def priced(run: Setup, beside: Beside = BESIDE) -> Exchange:
    return exchange(Clock(run, A100), CHUNK, WEIGHTS, beside)


def shown(message_s: float, compute_s: float) -> float:
    return message_s - A100.overlap_efficiency * min(message_s, compute_s)


def gather_s(nbytes: float, ranks: int, per_node: int) -> float:
    return collective_s("all_gather", nbytes, ranks, per_node, A100)


def test_each_layer_is_gathered_and_scattered_beside_its_neighbour() -> None:
    found = priced(setup(LLAMA3_8B, FSDP2, dp=16, zero=3))
    gather, scatter = gather_s(2 * UNIT, 16, 8), gather_s(4 * UNIT, 16, 8)
    assert found.forward_s == pytest.approx(gather + 31 * shown(gather, 0.01))
    assert found.backward_s == pytest.approx(scatter + 31 * shown(gather + scatter, 0.02))
    assert found.once_s == 0.0


def test_frozen_weights_are_gathered_but_have_no_gradients_to_scatter() -> None:
    """LoRA of rank 8 on queries and values: 3.4e6 gradients of Llama 3 8B are summed."""
    found = priced(setup(LLAMA3_8B, LITGPT, dp=16, zero=3, tuning="lora"))
    gather = gather_s(2 * UNIT, 16, 8)
    assert found.forward_s == pytest.approx(gather + 31 * shown(gather, 0.01))
    assert found.backward_s == pytest.approx(31 * shown(gather, 0.02))
    learned = 31 * 8 * (4 * 4096 + 1024 - 4096)
    summed = collective_s("all_reduce", 2 * learned, 16, 8, A100)
    last = summed / BUCKETS
    assert found.once_s == pytest.approx(last + shown(summed - last, 0.6))
    whole = priced(setup(LLAMA3_8B, LITGPT, dp=16, zero=0, tuning="lora"))
    assert whole == Exchange(once_s=found.once_s)


def test_replicas_gather_inside_and_sum_shards_between() -> None:
    found = priced(setup(LLAMA3_8B, FSDP2, dp=16, zero=3, replicas=2))
    gather, scatter = gather_s(2 * UNIT, 8, 8), gather_s(4 * UNIT, 8, 8)
    summed = collective_s("all_reduce", 4 * UNIT / 8, 2, 1, A100)
    again = gather + scatter + summed
    assert found.forward_s == pytest.approx(gather + 31 * shown(gather, 0.01))
    assert found.backward_s == pytest.approx(scatter + summed + 31 * shown(again, 0.02))


def test_shards_beside_tensor_parallel_ranks_are_apart() -> None:
    found = priced(setup(LLAMA3_8B, FSDP2, tp=2, dp=16, zero=3, replicas=4))
    gather, summed = gather_s(2 * UNIT, 4, 4), collective_s("all_reduce", UNIT, 4, 1, A100)
    again = gather + gather_s(4 * UNIT, 4, 4) + summed
    assert found.forward_s == pytest.approx(gather + 31 * shown(gather, 0.01))
    assert found.backward_s == pytest.approx(again - gather + 31 * shown(again, 0.02))


def test_replicas_of_an_optimizer_that_is_sharded() -> None:
    """Once a step, in buckets: scatter, sum of shards, gather of weights."""
    found = priced(setup(LLAMA3_8B, CORE, dp=64, zero=1, replicas=8))
    reduced = gather_s(4 * WEIGHTS, 8, 8)
    reduced += collective_s("all_reduce", 4 * WEIGHTS / 8, 8, 1, A100)
    gathered = gather_s(2 * WEIGHTS, 8, 8)
    last, first = reduced / BUCKETS, gathered / BUCKETS
    expected = last + shown(reduced - last, 0.6) + first + shown(gathered - first, 0.3)
    assert found.once_s == pytest.approx(expected)
    alone = priced(setup(LLAMA3_8B, MEGATRON, dp=64, zero=1, replicas=8))
    assert alone.once_s == pytest.approx(reduced + gathered)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_replicas_of_one_rank_only_sum_gradients(zero: int) -> None:
    plain = priced(setup(LLAMA3_8B, FSDP2, dp=16, zero=0))
    assert priced(setup(LLAMA3_8B, FSDP2, dp=16, zero=zero, replicas=16)) == plain


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([FSDP2, MEGATRON, CORE]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([(8, 1), (16, 2), (64, 8), (64, 4), (12, 3)]),
    st.tuples(*[st.floats(0, 1)] * 4),
)
def test_compute_beside_never_lengthens_messages(framework, zero, ranks, beside) -> None:
    run = setup(LLAMA3_8B, framework, dp=ranks[0], zero=zero, replicas=ranks[1])
    names = ("layer_forward_s", "layer_backward_s", "forward_s", "backward_s")
    alone = priced(run, Beside(**dict.fromkeys(names, 0.0)))
    hidden = priced(run, Beside(**dict(zip(names, beside, strict=True))))
    assert hidden.forward_s + hidden.backward_s + hidden.once_s > 0
    assert hidden.forward_s <= alone.forward_s
    assert hidden.backward_s <= alone.backward_s
    assert hidden.once_s <= alone.once_s


def test_replicas_hold_and_update_a_share_of_their_group() -> None:
    """Bytes of Zhao et al. 2023, section 3.2.2: sharding factor F of W ranks keeps 1/F."""
    hybrid = setup(LLAMA3_8B, FSDP2, dp=64, zero=3, replicas=8)
    alone = setup(LLAMA3_8B, FSDP2, dp=8, zero=3)
    assert held_states(hybrid, chunks(hybrid)) == held_states(alone, chunks(alone))
    assert updated_weights(hybrid, chunks(hybrid)) == updated_weights(alone, chunks(alone))


def test_replicas_send_two_thirds_over_a_slow_network() -> None:
    """Two gathers and a scatter of all against a sum of shards (Zhao et al. 2023, section 3.2.2);
    either way the ranks of a node share what crosses its border."""
    full = setup(LLAMA3_8B, LITGPT, dp=256, zero=3)
    slow = replace(A100, oversubscription=1e4, overlap_efficiency=1.0)
    each = [step_of(run, slow).exposed_comm_s for run in (replace(full, replicas=32), full)]
    assert each[0] / each[1] == pytest.approx(2 * 31 / 32 / (3 * 255 / 256), rel=0.03)
