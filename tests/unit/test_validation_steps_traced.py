"""Products and parameters of the layer list against traced transformers of the same sizes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from torch import nn

from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph, OpNode
from autoplan.validation.ranks.learned_weights import LORA_RANK
from autoplan.validation.setups.setup import Setup
from autoplan.validation.setups.transformer import Transformer
from autoplan.validation.step.ends import head
from autoplan.validation.step.passes import Pass
from tests.unit import trace_models
from tests.unit.memory_setups import FSDP2, setup
from tests.unit.step_parts import flops_of, layer_of, products_of, streamed_bytes

VOCAB, LENGTH, BATCH = 61, 16, 2
LLAMA = Transformer(
    layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, ffn=48, vocab=VOCAB, gated=True,
    rotary=True, biases=False, tied=False,
)  # fmt: skip
GPT2 = Transformer(
    layers=2, hidden=32, heads=4, kv_heads=4, head_dim=8, ffn=128, vocab=VOCAB, gated=False,
    rotary=False, biases=True, tied=True,
)  # fmt: skip
MODELS = {"llama": (LLAMA, trace_models.llama), "gpt2": (GPT2, trace_models.gpt2)}
both_models = pytest.mark.parametrize("name", MODELS)
both_kernels = pytest.mark.parametrize(
    ("attention", "implementation"), [("flash", "sdpa"), ("scores", "eager")]
)


@cache
def traced(name: str, implementation: str) -> OpGraph:
    model = MODELS[name][1]()
    model.config._attn_implementation = implementation
    return graph_of(model)


def graph_of(model: nn.Module) -> OpGraph:
    ids, labels = trace_models.tokens(BATCH, LENGTH, VOCAB)
    return capture(model, {"input_ids": ids, "labels": labels})


def run_of(name: str, **changes) -> Setup:
    return setup(MODELS[name][0], FSDP2, **{"seq_len": LENGTH, "microbatch": BATCH} | changes)


@both_models
@both_kernels
def test_forward_products_are_those_of_the_traced_model(name, attention, implementation) -> None:
    run = run_of(name, attention=attention)
    layers = run.model.layers * products_of(layer_of(run).forward)
    ours = Counter(_sizes(each) for each in (*layers, *products_of(head(run).forward)))
    assert ours == traced_products(traced(name, implementation))


def _sizes(product) -> tuple[int, int, int, int]:
    return product.batch, product.m, product.n, product.k


def traced_products(graph: OpGraph) -> Counter[tuple[int, int, int, int]]:
    """Batch, m, n and k of all products; weights that share an input make one product."""
    found: Counter[tuple[int, int, int, int]] = Counter()
    columns: Counter[tuple[object, int, int]] = Counter()
    for node in graph.nodes:
        if not node.flops or "attention" in node.target:
            continue
        out = node.outputs[0].shape
        k = node.flops // (2 * math.prod(out))
        if "matmul" in node.target:
            found[math.prod(out[:-2]), out[-2], out[-1], k] += 1
        else:
            rows = math.prod(out[:-1])
            columns[_input_of(node), rows, k] += out[-1]
    for (_, rows, k), outputs in columns.items():
        found[1, rows, outputs, k] += 1
    return found


def _input_of(node: OpNode) -> object:
    return node.operands[1 if "addmm" in node.target else 0]


@both_models
@both_kernels
def test_operations_are_those_of_the_traced_model(name, attention, implementation) -> None:
    """The trace counts all scores of the fused kernel, which skips the half above the diagonal."""
    run, graph = run_of(name, attention=attention), traced(name, implementation)
    skipped = [node for node in graph.nodes if node.flops and "attention" in node.target]
    forward = sum(node.flops for node in graph.nodes) - sum(n.flops for n in skipped) / 2
    backward = sum(node.backward_flops for node in graph.nodes)
    backward -= sum(node.backward_flops for node in skipped) / 2
    assert whole_model(run, "forward") == forward
    assert whole_model(run, "inputs") + whole_model(run, "weights") == backward


def whole_model(run: Setup, part: str) -> float:
    return run.model.layers * _part(layer_of(run), part) + _part(head(run), part)


def _part(part, which: str) -> float:
    done: Pass = getattr(part, which)
    return flops_of(done)


def test_eager_operators_move_the_bytes_of_the_traced_ones() -> None:
    """Norms, rotary embedding, SwiGLU and residuals of one layer, each operator in a kernel.

    But for row sums, tables of positions and the norms' weights, which are one in 32 here.
    """
    graph = graph_of(trace_models.llama().bfloat16())
    moved = sum(
        tensor.nbytes
        for node in graph.nodes
        if "layers.1." in f"{node.module}." and node.kind == "call" and not node.flops
        if not (node.alias_of and all(node.alias_of))
        for tensor in (*map(graph.meta, dict.fromkeys(node.operands)), *node.outputs)
    )
    assert streamed_bytes(layer_of(run_of("llama")).forward) == pytest.approx(moved, rel=0.03)


@both_models
def test_parameters_are_those_of_the_built_model(name) -> None:
    model = MODELS[name][1]()
    positions = model.config.max_position_embeddings if name == "gpt2" else 0
    built = sum(parameter.numel() for parameter in model.parameters())
    assert MODELS[name][0].parameters(positions) == built


@pytest.mark.parametrize("tied", [True, False])
def test_a_second_table_of_the_vocabulary_is_counted_where_it_is_not_tied(tied) -> None:
    plain = trace_models.GPT(vocab=VOCAB, width=32, heads=4, layers=2, length=12, tied=tied)
    built = sum(parameter.numel() for parameter in plain.parameters())
    assert replace(GPT2, tied=tied).parameters(12) == built


class LowRank(nn.Module):
    """A frozen product and its learning low-rank update (Hu et al. 2021)."""

    def __init__(self, frozen: nn.Linear, rank: int):
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))


def test_low_rank_tuning_has_the_operations_of_the_traced_adapters() -> None:
    """But for gradients of the first layer's input, which a frozen embedding does not need."""
    model = trace_models.llama().requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.q_proj = LowRank(layer.self_attn.q_proj, LORA_RANK)
        layer.self_attn.v_proj = LowRank(layer.self_attn.v_proj, LORA_RANK)
    graph, run = graph_of(model), run_of("llama", tuning="lora")
    ours = whole_model(run, "inputs") + whole_model(run, "weights")
    scores = [node for node in graph.nodes if node.flops and "attention" in node.target]
    backward = sum(node.backward_flops for node in graph.nodes)
    backward -= sum(node.backward_flops for node in scores) / 2
    tokens, sizes = run.tokens, run.model
    into = sizes.attention_width + 2 * sizes.kv_width + 2 * LORA_RANK
    assert ours - 2 * tokens * sizes.hidden * into == backward
    assert whole_model(run, "forward") == (
        sum(node.flops for node in graph.nodes) - sum(node.flops for node in scores) / 2
    )
    learning = sum(each.numel() for each in model.parameters() if each.requires_grad)
    assert learning == sizes.layers * LORA_RANK * (
        2 * sizes.hidden + sizes.attention_width + sizes.kv_width
    )
