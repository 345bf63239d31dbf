"""Operations of a whole step against published formulas: GPT, tensor parallelism, experts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.validation.setups.setup import Setup
from autoplan.validation.setups.transformer import Transformer
from autoplan.validation.step.blocks import feed_forward_block
from autoplan.validation.step.ends import head
from cost_models.compute import kernel_s
from hardware_profiles.load import load
from tests.unit.memory_setups import DEEPSPEED, LLAMA3_70B, MEGATRON, gpt, llama, setup
from tests.unit.step_parts import flops_of, layer_of, products_of, streamed_bytes

# Layers, hidden size, heads, batch: Narayanan et al. 2021, table 1.
TABLE_1 = {
    "1.7B": (24, 2304, 24, 512),
    "18.4B": (40, 6144, 48, 1024),
    "145.6B": (80, 12288, 96, 2304),
    "529.6B": (105, 20480, 128, 2520),
    "1008.0B": (128, 25600, 160, 3072),
}


def step_flops(run: Setup) -> float:
    """Of one microbatch through the whole model, what runs again included."""
    layer, last = layer_of(run), head(run)
    once = flops_of(layer.forward, layer.again, layer.inputs, layer.weights)
    return run.model.layers * once + flops_of(last.forward, last.inputs, last.weights)


@pytest.mark.parametrize("name", TABLE_1)
def test_a_step_with_full_recompute_has_the_operations_of_narayanan_2021(name: str) -> None:
    """Equation 3; scores are written and counted whole, as there."""
    layers, hidden, heads, batch = TABLE_1[name]
    run = setup(
        gpt(layers, hidden, heads), DEEPSPEED, microbatch=4, attention="scores", recompute="block"
    )
    seq, vocab = run.seq_len, run.model.vocab
    per_sequence = 96 * seq * layers * hidden**2
    formula = batch * per_sequence * (1 + seq / (6 * hidden) + vocab / (16 * layers * hidden))
    assert batch / run.microbatch * step_flops(run) == pytest.approx(formula, rel=0.005)


def test_without_recompute_a_step_has_six_operations_a_weight_and_token() -> None:
    """Kaplan et al. 2020: 6 N D beside attention, for every weight that multiplies."""
    run = setup(LLAMA3_70B, MEGATRON, seq_len=8192)
    model = run.model
    weights = model.layers * (model.attention_parameters + model.feed_forward_parameters)
    weights += model.embedding_parameters
    causal_scores = 2 * run.tokens * run.seq_len * model.attention_width / 2
    forward, backward = 2 * causal_scores, 5 * causal_scores
    assert step_flops(run) == 6 * weights * run.tokens + model.layers * (forward + backward)


@pytest.mark.parametrize("attention", ["flash", "scores"])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_products_of_all_tensor_parallel_ranks_are_the_whole(
    attention: str, sequence_parallel: bool, tp: int
) -> None:
    changes = {"attention": attention, "recompute": "block"}
    whole = setup(LLAMA3_70B, MEGATRON, **changes)
    split = setup(LLAMA3_70B, MEGATRON, tp=tp, sequence_parallel=sequence_parallel, **changes)
    assert tp * step_flops(split) == step_flops(whole)


def test_ranks_with_a_part_of_the_sequence_do_an_equal_share() -> None:
    whole = setup(LLAMA3_70B, MEGATRON, seq_len=32768)
    split = setup(LLAMA3_70B, MEGATRON, seq_len=32768, cp=4)
    assert 4 * step_flops(split) == step_flops(whole)


def experts(count: int, per_token: int, width: int) -> Transformer:
    dense = llama(32, 4096, 32, 8, per_token * width)
    return replace(dense, experts=count, experts_per_token=per_token, expert_ffn=width)


def test_experts_do_the_work_of_a_dense_block_of_the_active_width() -> None:
    """8 experts of which 2 see a token: not the work of all 8; the router's on top."""
    model = experts(8, 2, 14336)
    routed = layer_of(setup(model, MEGATRON))
    dense = layer_of(setup(replace(model, experts=0, experts_per_token=0), MEGATRON))
    router = 2 * 2048 * model.hidden * model.experts
    for which in ("forward", "inputs", "weights"):
        ours, theirs = flops_of(getattr(routed, which)), flops_of(getattr(dense, which))
        assert ours == theirs + router


@pytest.mark.parametrize("microbatch", [1, 3])
@pytest.mark.parametrize(("count", "per_token"), [(8, 2), (64, 6), (128, 1)])
def test_products_of_experts_have_a_row_for_each_routed_token(
    microbatch: int, count: int, per_token: int
) -> None:
    run = setup(experts(count, per_token, 1408), MEGATRON, seq_len=1000, microbatch=microbatch)
    _, into, out = products_of(feed_forward_block(run).forward)
    routed = 1000 * microbatch * per_token
    assert (into.n, into.k, out.n, out.k) == (2 * 1408, 4096, 4096, 1408)
    for product in (into, out):
        assert routed <= product.batch * product.m < routed + count


def test_no_more_experts_work_than_tokens_are_routed() -> None:
    run = setup(experts(64, 2, 1408), MEGATRON, seq_len=8, microbatch=1)
    _, into, _ = products_of(feed_forward_block(run).forward)
    assert (into.batch, into.m) == (16, 1)


def test_expert_ranks_share_experts_and_keep_their_tokens() -> None:
    alone = setup(experts(64, 2, 1408), MEGATRON, dp=8, ep=1)
    shared = replace(alone, ep=8)
    _, one, _ = products_of(feed_forward_block(alone).forward)
    _, other, _ = products_of(feed_forward_block(shared).forward)
    assert one.batch == 8 * other.batch == 64
    assert one.batch * one.m == other.batch * other.m == 2 * 2048
    assert flops_of(layer_of(alone).forward) == flops_of(layer_of(shared).forward)


@pytest.mark.parametrize("tuning", ["lora", "adapter", "adapter-v2"])
def test_frozen_weights_have_no_gradient_and_their_inputs_do(tuning: str) -> None:
    model = llama(32, 4096, 32, 32, 11008)
    whole, tuned = setup(model, MEGATRON), setup(model, MEGATRON, tuning=tuning)
    frozen = {
        (product.m, product.n, product.k)
        for product in products_of(layer_of(whole).weights, head(whole).weights)
    }
    learning = {
        (product.m, product.n, product.k)
        for product in products_of(layer_of(tuned).weights, head(tuned).weights)
    }
    assert len(frozen) == 5
    assert not frozen & learning
    before, after = flops_of(layer_of(whole).inputs), flops_of(layer_of(tuned).inputs)
    assert before <= after < 1.02 * before
    assert flops_of(head(tuned).inputs) == flops_of(head(whole).inputs)


def test_weights_of_four_bits_are_written_out_before_each_product() -> None:
    """bitsandbytes reads 4 bits and a scale of 4 bytes for 64 weights, and writes 16 bits."""
    plain = setup(llama(32, 4096, 32, 32, 11008), MEGATRON, tuning="lora")
    four_bit = replace(plain, quantised=True)
    weights = plain.model.attention_parameters + plain.model.feed_forward_parameters
    for which in ("forward", "inputs"):
        one, other = getattr(layer_of(plain), which), getattr(layer_of(four_bit), which)
        moved = streamed_bytes(other) - streamed_bytes(one)
        assert moved == pytest.approx(weights * (0.5 + 4 / 64 + 2))
        assert flops_of(one) == flops_of(other)


def test_sizes_that_do_not_split_evenly_are_those_of_the_fullest_rank() -> None:
    model = replace(llama(2, 768, 12, 6, 1000), vocab=50257)
    run = setup(model, MEGATRON, tp=4)
    queries_keys_values, out, into, down = products_of(layer_of(run).forward)
    assert queries_keys_values.n == 64 * (3 + 2 + 2)
    assert (out.k, into.n, down.k) == (64 * 3, 2 * 250, 250)
    assert products_of(head(run).forward)[0].n == 12565


def test_gradients_of_weights_have_operands_in_rows_of_inputs_and_of_outputs() -> None:
    """An uneven vocabulary makes all three products of the head slower, not only two."""
    head_s = []
    for vocab in (50257, 50304):
        run = setup(replace(gpt(1, 1024, 16), vocab=vocab), MEGATRON)
        (product,) = products_of(head(run).weights)
        assert {product.m, product.n} == {1024, vocab}
        head_s.append(kernel_s(product, load("dgx-a100-80g").device))
    assert head_s[0] > 1.5 * head_s[1]
