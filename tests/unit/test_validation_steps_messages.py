"""Messages of one layer against what the papers of each parallelism count."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.validation.setups.framework_features import NEMO, TORCHTITAN
from autoplan.validation.step.ends import embedding, head
from autoplan.validation.step.passes import Part
from cost_models.algorithms import CHUNKED, Group
from tests.unit.memory_setups import LLAMA3_8B, MEGATRON, gpt, llama, setup
from tests.unit.step_parts import layer_of, sent

GPT_22B = gpt(48, 6144, 64)


def test_a_layer_sums_twice_forward_and_twice_backward() -> None:
    """Shoeybi et al. 2019, figure 4: two all-reduces in each pass, of the layer's activations."""
    run = setup(GPT_22B, MEGATRON, tp=8, microbatch=4)
    layer = layer_of(run)
    block = ("all_reduce", 2 * run.tokens * run.model.hidden)
    assert sent(layer.forward, axis="tp") == 2 * [block]
    assert sent(layer.inputs, axis="tp") == 2 * [block]
    assert not layer.weights.messages


def ring_bytes(messages: list[tuple[str, float]], ranks: int) -> float:
    """That one rank sends in a ring."""
    group = Group(ranks, ranks, 1)
    return sum(CHUNKED[kind][0](nbytes, group).inner_bytes for kind, nbytes in messages)


def test_sequence_parallelism_sends_as_much_as_the_sums_it_replaces() -> None:
    """Korthikanti et al. 2022, section 4.2.2; the input gathered again is overlapped there."""
    whole = setup(GPT_22B, MEGATRON, tp=8, microbatch=4)
    split = replace(whole, sequence_parallel=True)
    before, after = layer_of(whole), layer_of(split)
    assert sent(after.forward, axis="tp") == 2 * [
        ("all_gather", 2 * whole.tokens * 6144), ("reduce_scatter", 2 * whole.tokens * 6144)
    ]  # fmt: skip
    sums = ring_bytes(sent(before.forward, axis="tp"), 8)
    assert ring_bytes(sent(after.forward, axis="tp"), 8) == sums
    backward = sent(after.inputs, axis="tp")
    again = 2 * [("all_gather", 2 * whole.tokens * 6144)]
    assert len(backward) == 6
    assert ring_bytes(backward, 8) - ring_bytes(again, 8) == sums
    hidden_by = [each for each in after.inputs.messages if each.beside]
    assert [each.kind for each in hidden_by] == 2 * ["reduce_scatter", "all_gather"]


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_full_recompute_sends_the_forward_again(sequence_parallel: bool) -> None:
    run = setup(GPT_22B, MEGATRON, tp=8, recompute="block", sequence_parallel=sequence_parallel)
    layer = layer_of(run)
    assert sent(layer.again, axis="tp") == sent(layer.forward, axis="tp")
    early = replace(run, framework=TORCHTITAN)
    assert sent(layer_of(early).again, axis="tp") == sent(layer.forward, axis="tp")[:-1]


def test_early_stop_of_recompute_still_gathers_keys() -> None:
    run = setup(LLAMA3_8B, TORCHTITAN, cp=4, recompute="block")
    layer = layer_of(run)
    assert sent(layer.again, axis="cp") == sent(layer.forward, axis="cp")
    assert len(sent(layer.again, axis="cp")) == 1


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_context_parallel_ranks_gather_keys_and_values(tp: int) -> None:
    """Forward and again in the backward, whose gradients are scattered; 8 heads of 128 in all."""
    run = setup(LLAMA3_8B, MEGATRON, cp=4, tp=tp, seq_len=8192)
    keys_values = 2 * 2 * 8192 * 8 * 128 / tp
    layer = layer_of(run)
    assert sent(layer.forward, axis="cp") == [("all_gather", keys_values)]
    assert sent(layer.inputs, axis="cp") == [
        ("all_gather", keys_values), ("reduce_scatter", keys_values)
    ]  # fmt: skip


@pytest.mark.parametrize(("tp", "sequence_parallel"), [(1, False), (4, True)])
def test_tokens_go_to_their_experts_and_back(tp: int, sequence_parallel: bool) -> None:
    model = replace(LLAMA3_8B, experts=8, experts_per_token=2, expert_ffn=14336)
    run = setup(
        model, MEGATRON, dp=8, ep=8, tp=tp, sequence_parallel=sequence_parallel, seq_len=4096
    )
    layer = layer_of(run)
    own = 2 * (4096 // tp) * 2 * 4096
    assert sent(layer.forward, axis="ep") == 2 * [("all_to_all", own)]
    assert sent(layer.inputs, axis="ep") == 2 * [("all_to_all", own)]
    if sequence_parallel:
        assert sent(layer.forward, axis="tp")[2:] == [
            ("all_gather", tp * own), ("reduce_scatter", tp * own)
        ]  # fmt: skip


def test_one_rank_sends_nothing() -> None:
    run = setup(llama(4, 1024, 8, 8, 2816), MEGATRON, recompute="block")
    parts: list[Part] = [layer_of(run), embedding(run), head(run)]
    for part in parts:
        for one in (part.forward, part.again, part.inputs, part.weights):
            assert not one.messages


def test_the_loss_over_a_split_vocabulary_sends_three_numbers_a_token() -> None:
    """Shoeybi et al. 2019, section 3: scalars of each token, not its logits."""
    run = setup(GPT_22B, MEGATRON, tp=8)
    assert sent(head(run).forward, axis="tp") == 3 * [("all_reduce", 4 * run.tokens)]
    assert sent(head(run).inputs, axis="tp") == [("all_reduce", 2 * run.tokens * 6144)]
    assert sent(embedding(run).forward, axis="tp") == [("all_reduce", 2 * run.tokens * 6144)]


def test_frameworks_that_overlap_send_beside_their_products() -> None:
    run = setup(LLAMA3_8B, NEMO, tp=4, sequence_parallel=True)
    layer = layer_of(run)
    assert all(each.beside for each in (*layer.forward.messages, *layer.inputs.messages))
    plain = layer_of(replace(run, framework=MEGATRON))
    assert not any(each.beside for each in plain.forward.messages)
