"""The well-known ways to place a transformer equal one device, in float64 and float32."""

from __future__ import annotations

import pytest
import torch

from autoplan.codegen.pipeline import emit_choices
from autoplan.sharding.placement import Replicate, Shard
from tests.parity.cases import case
from tests.parity.choose import recipe, replicated
from tests.parity.ranks import combine, of_rank, per_rank, simulated_ranks
from tests.parity.simulate import Outcome, assert_same, build_sharded, sharded

COLUMN = {f"{name}.{part}": 0 for name in "qkv" for part in ("weight", "bias")}
MEGATRON = {**COLUMN, "up.weight": 0, "up.bias": 0, "o.weight": 1, "down.weight": 1}
VOCABULARY = {"tokens.weight": 0, "head.weight": 0}
LLAMA = {
    **{f"{name}_proj.weight": 0 for name in ("q", "k", "v", "gate", "up")},
    "o_proj.weight": 1, "down_proj.weight": 1, "embed_tokens.weight": 0, "lm_head.weight": 0,
}  # fmt: skip
GPT2 = {
    "c_attn.weight": 1, "c_attn.bias": 0, "attn.c_proj.weight": 0,
    "c_fc.weight": 1, "c_fc.bias": 0, "mlp.c_proj.weight": 0, "wte.weight": 0,
}  # fmt: skip
RECIPES = {
    "megatron": ("gpt", MEGATRON, Replicate()),
    "megatron-vocabulary": ("gpt", {**MEGATRON, **VOCABULARY}, Replicate()),
    "sequence": ("gpt", {**MEGATRON, **VOCABULARY}, Shard(1)),
    "tied-vocabulary": ("tied-gpt", {**MEGATRON, **VOCABULARY}, Shard(1)),
    "llama": ("hf-llama", LLAMA, Shard(1)),
    "gpt2": ("hf-gpt2", GPT2, Replicate()),
    "tokens": ("gpt", {}, Shard(1)),
    "llama-tokens": ("hf-llama", {}, Shard(1)),
}


F64, F32 = torch.float64, torch.float32


@pytest.mark.parametrize(("tp", "dtype"), [(2, F64), (4, F64), (8, F64), (4, F32)])
@pytest.mark.parametrize("name", RECIPES)
def test_recipe(name, tp, dtype):
    model, weights, entry = RECIPES[name]
    tested = case(model, dtype)
    emitted = emit_choices(recipe(tested.graph, tp, weights, entry), name)
    assert_same(sharded(emitted, tested.model, tested.batch), tested.truth())


@pytest.mark.parametrize("name", ["gpt", "tied-gpt", "mlp", "hf-gpt2", "hf-llama"])
def test_replicated(name):
    tested = case(name)
    emitted = emit_choices(replicated(tested.graph, 2, dp=3, num_microbatches=2), name)
    assert_same(sharded(emitted, tested.model, tested.batch), tested.truth())


@pytest.mark.parametrize("name", ["tokens", "llama-tokens"])
def test_attention_of_split_tokens_gathers_keys_and_values_alone(name):
    model, weights, entry = RECIPES[name]
    source = emit_choices(recipe(case(model).graph, 2, weights, entry), name).source
    attention = source.split("class ShardedModel")[0].count("causal_attention_of_rows(")
    block = source.split("class ShardedModel")[0].split("def forward")[1]
    gathered = [line for line in block.splitlines() if "all_gather" in line]
    assert attention
    assert len(gathered) == 2


def test_megatron_sends_two_all_reduces_a_block_each_way():
    """Megatron-LM (arXiv 1909.08053), figure 4: f and g once in attention and once in the MLP."""
    graph = case("gpt").graph
    source = emit_choices(recipe(graph, 2, MEGATRON), "gpt").source
    block = source.split("class ShardedModel")[0].split("def forward")[1]
    messages = [line.split(" = ")[1].split("(")[0] for line in block.splitlines() if "tp)" in line]
    assert sorted(m for m in messages if m != "mask__identity") == [
        "all_reduce__identity", "all_reduce__identity",
        "identity__all_reduce", "identity__all_reduce",
    ]  # fmt: skip


def test_sequence_parallel_sends_gathers_and_scatters():
    """Korthikanti et al. (arXiv 2205.05198), figure 5."""
    graph = case("gpt").graph
    source = emit_choices(recipe(graph, 2, MEGATRON, Shard(1)), "gpt").source
    block = source.split("class ShardedModel")[0].split("def forward")[1]
    assert block.count("all_gather__reduce_scatter(") == 2
    assert block.count("reduce_scatter__all_gather(") == 2


@pytest.mark.parametrize("name", ["sequence", "tied-vocabulary", "llama", "gpt2"])
def test_on_torch_collectives(name):
    """The same program on torch's own collectives, eight ranks simulated by LocalTensorMode."""
    model, weights, entry = RECIPES[name]
    tested = case(model)
    emitted = emit_choices(recipe(tested.graph, 8, weights, entry), name)
    with simulated_ranks(8) as axis:
        root = build_sharded(emitted, tested.model, axis)
        inputs = [per_rank([value] * 8) for value in tested.batch.values()]
        loss = root(*inputs, root.count(*inputs))
        loss.backward()
    gradients = {
        name: combine(of_rank(parameter.grad), emitted.parameters[name].placement)
        for name, parameter in root.named_parameters()
    }
    assert_same(Outcome(combine(of_rank(loss), Replicate()), gradients), tested.truth())
