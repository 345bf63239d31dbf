"""Kernels of operators against torch's own count of operations, under every strategy."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autoplan.runtime.batch_norm import synced_batch_norm
from autoplan.runtime.collectives import AxisGroup
from autoplan.runtime.dropout import invariant_dropout
from autoplan.runtime.random import Draws
from autoplan.search.kernels import is_worth_splitting, kernels_of
from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.placement import Shard
from autoplan.sharding.rules import GraphRules
from autoplan.trace.capture import capture
from autoplan.trace.experts import EXPERTS
from cost_models.work import Contraction, FlashAttention, Gemm, Streaming
from tests.unit.trace_models import GPT, token_loss, tokens

RANKS = 2
AXIS = MeshAxis("tp", RANKS)


class Products(nn.Module):
    """One operator of every kind that multiplies, on learned factors and on data."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 16))
        self.stack = nn.Parameter(torch.randn(4, 8, 16))
        self.bias = nn.Parameter(torch.randn(16))
        self.wide = nn.Conv2d(4, 8, 3, padding=1)
        self.grouped = nn.Conv1d(8, 16, 3, groups=4, stride=2)

    def forward(self, x):
        """x: (batch, 4, 8, 8)."""
        batch = x.shape[0]
        left = x.permute(0, 1, 3, 2)
        flat = torch.addmm(self.bias, x.reshape(batch * 32, 8), self.weight)
        stacked = torch.baddbmm(
            self.bias, x.reshape(batch * 4, 8, 8), (left @ self.weight).flatten(0, 1)
        )
        images = self.wide(x)
        return (
            flat.sum() / batch
            + stacked.mean()
            + (x @ self.stack).mean()
            + torch.mm(flat.t(), flat).mean() / batch
            + (x @ self.bias[:8]).mean()
            + torch.einsum("bchw,chv->bwv", x, self.stack).mean()
            + self.grouped(images.flatten(2)).mean()
        )


class Experts(nn.Module):
    """Four experts of inner width 8, two for each of 16 features."""

    def __init__(self):
        super().__init__()
        self.first, self.router = nn.Linear(16, 16), nn.Linear(16, 4)
        self.gate_up = nn.Parameter(torch.randn(4, 16, 16))
        self.down = nn.Parameter(torch.randn(4, 16, 8))

    def forward(self, x):
        x = self.first(x)
        weight, index = self.router(x).softmax(-1).topk(2)
        return EXPERTS(x, index, weight, self.gate_up, self.down, "silu").sum()


class Recurrent(nn.Module):
    """Two layers, the second in both directions."""

    def __init__(self):
        super().__init__()
        self.first = nn.LSTM(6, 8, batch_first=True)
        self.second = nn.GRU(8, 4, bidirectional=True)

    def forward(self, x):
        """x: (batch, steps, 6)."""
        return self.second(self.first(x)[0].transpose(0, 1))[0].sum()


OF_RECURRENT = capture(Recurrent(), (torch.randn(4, 5, 6, requires_grad=True),)).at_batch(4)
OF_GPT = capture(GPT(layers=1, width=32, heads=4, length=16), tokens(2, 16, 61), loss_fn=token_loss)
OF_PRODUCTS = capture(Products(), (torch.randn(2, 4, 8, 8),))
OF_EXPERTS = capture(Experts(), (torch.randn(64, 16),)).at_batch(64)


def cases(graph):
    for node in graph.of_kind("call"):
        if not (node.alias_of and all(node.alias_of)):
            for strategy in GraphRules(graph).strategies(node, AXIS):
                read = [graph.meta(ref) for ref in node.operands]
                yield node, read, strategy, kernels_of(node, read, 100.0, strategy, RANKS)


def counted(work: Gemm | FlashAttention | Contraction) -> float:
    """Torch counts all scores of masked attention."""
    return work.flops * (2 if isinstance(work, FlashAttention) and work.causal else 1)


@pytest.mark.parametrize(
    "graph",
    [OF_GPT, OF_PRODUCTS, OF_EXPERTS, OF_RECURRENT],
    ids=["gpt", "products", "experts", "recurrent"],
)
def test_operations_are_torchs_over_the_ranks(graph):
    seen = set()
    for node, _, strategy, found in cases(graph):
        if strategy.local_op == "causal_attention_of_rows":
            continue
        split = RANKS if strategy.splits_work else 1
        for flops, works in (
            (node.flops, found.forward),
            (node.backward_flops, found.backward),
        ):
            products = [work for work in works if not isinstance(work, Streaming)]
            assert sum(counted(work) for work in products) == pytest.approx(flops / split), node
            seen |= {type(work) for work in products}
    assert Gemm in seen


def test_every_kind_of_product_is_met():
    targets = {node.target for graph in (OF_GPT, OF_PRODUCTS) for node in graph.nodes if node.flops}
    assert targets >= {
        "aten.linear.default", "aten.matmul.default", "aten.addmm.default", "aten.baddbmm.default",
        "aten.mm.default", "aten.einsum.default", "aten.conv2d.default", "aten.conv1d.default",
        "aten.scaled_dot_product_attention.default",
    }  # fmt: skip


def shapes(graph, target, label):
    for node, _, strategy, found in cases(graph):
        if (node.target, strategy.label) == (target, label):
            return [
                (work.batch, work.m, work.n, work.k)
                for work in (*found.forward, *found.backward)
                if isinstance(work, Gemm)
            ]
    raise AssertionError(f"no {target} {label}")


def test_shapes_of_a_linear_layer():
    """The first of GPT's layers: 32 tokens, 32 features to 96, split by output and by input."""
    graph, linear = OF_GPT, "aten.linear.default"
    assert shapes(graph, linear, "replicate") == [(1, 32, 96, 32), (1, 32, 32, 96), (1, 32, 96, 32)]
    assert shapes(graph, linear, "k") == [(1, 32, 96, 16), (1, 32, 16, 96), (1, 16, 96, 32)]


def test_experts_take_equal_shares_of_routed_tokens():
    """64 tokens to two of four experts: 32 to each."""
    graph, target = OF_EXPERTS, "autoplan.experts.default"
    products = [(32, 16, 16), (32, 16, 8), (32, 8, 16), (32, 16, 16), (16, 16, 32), (16, 8, 32)]
    assert shapes(graph, target, "replicate") == [(4, *product) for product in products]
    assert shapes(graph, target, "e") == [(2, *product) for product in products]


def test_fewer_pairs_than_experts_meet_as_many_experts_as_pairs():
    graph = OF_EXPERTS.at_batch(1)
    assert shapes(graph, "autoplan.experts.default", "replicate")[0] == (2, 1, 16, 16)


def test_experts_hold_more_than_they_keep():
    """The gradients of the shares and of what they are taken of, in float32, and their sums."""
    (whole,) = (
        found
        for node, _, strategy, found in cases(OF_EXPERTS)
        if node.target == "autoplan.experts.default" and strategy.label == "replicate"
    )
    pairs, tokens, width = 128, 64, 16 * 4
    assert whole.inner_bytes == 4 * pairs * width + tokens * width


def test_attention_follows_its_heads():
    graph = OF_GPT
    found = {
        strategy.label: kernels.forward[0]
        for node, _, strategy, kernels in cases(graph)
        if node.target == "aten.scaled_dot_product_attention.default"
    }
    whole, split = found["replicate"], found["h"]
    assert isinstance(whole, FlashAttention)
    assert isinstance(split, FlashAttention)
    assert (whole.batch, whole.heads, whole.kv_heads, whole.queries) == (2, 4, 4, 16)
    assert (split.heads, split.kv_heads, split.head_dim, split.causal) == (2, 2, 8, True)


def test_the_last_rank_of_split_queries_sees_the_most_keys():
    (work,) = {
        found.forward[0]
        for _, _, strategy, found in cases(OF_GPT)
        if strategy.local_op == "causal_attention_of_rows"
    }
    positions = work.queries * RANKS
    seen = [place + 1 for place in range(positions)][-work.queries :]
    assert not work.causal
    assert work.queries * work.keys == sum(seen) - work.queries / 2  # the diagonal counts half


def test_few_queries_are_not_split():
    offered = {
        (strategy.label, is_worth_splitting(node, strategy, RANKS))
        for node, _, strategy, _ in cases(OF_GPT)
        if node.target == "aten.scaled_dot_product_attention.default"
    }
    assert offered == {("replicate", True), ("h", True), ("s", False)}


def test_everything_else_streams():
    graph = OF_GPT
    streams = [
        kernels
        for node, _, _, kernels in cases(graph)
        if node.target in ("aten.gelu.default", "aten.add.Tensor")
    ]
    assert streams
    for kernels in streams:
        assert (kernels.forward, kernels.backward) == (
            (Streaming(bytes=100.0),),
            (Streaming(bytes=200.0),),
        )


def test_products_of_unknown_shape_keep_their_operations():
    graph = OF_PRODUCTS
    found = [
        kernels for node, _, _, kernels in cases(graph) if node.target == "aten.einsum.default"
    ]
    assert found
    assert all(isinstance(work, Contraction) for each in found for work in each.forward)


def test_masks_and_data_without_gradients():
    """A tensor as mask skips no scores; data that does not learn has no gradient product."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x, mask):
            q = self.inner(x).unflatten(-1, (2, 4)).transpose(1, 2)
            return F.scaled_dot_product_attention(q, q, q, attn_mask=mask).mean()

    graph = capture(
        Masked(),
        (torch.randn(2, 6, 8), torch.ones(6, 6, dtype=torch.bool)),
        batch_dims={"x": 0, "mask": None},
    )
    found = {
        node.target: kernels
        for node, _, strategy, kernels in cases(graph)
        if strategy.label == "replicate"
    }
    attention = found["aten.scaled_dot_product_attention.default"].forward[0]
    assert isinstance(attention, FlashAttention)
    assert not attention.causal
    linear = found["aten.linear.default"]
    assert [type(work) for work in linear.backward] == [Gemm, Streaming]


def test_gradients_of_parameters_are_told_apart():
    """A product has one for each factor, a bias a sum; what streams has them all at once."""
    of_weights = {}
    for node, read, strategy, whole in cases(OF_PRODUCTS):
        stored = [OF_PRODUCTS.by_name[ref.node].kind == "parameter" for ref in node.operands]
        found = kernels_of(node, read, 100.0, strategy, RANKS, stored)
        assert (found.forward, found.backward) == (whole.forward, whole.backward)
        assert whole.backward_weight == ()
        if strategy.label == "replicate":
            of_weights[node.target] = found
    for target in ("aten.conv2d.default", "aten.addmm.default"):
        found = of_weights[target]
        product, added = found.backward_weight
        assert isinstance(product, Gemm)
        assert isinstance(added, Streaming)
        assert set(found.backward_weight) <= set(found.backward)
    for target in ("aten.mm.default", "aten.add.Tensor", "aten.mean.default"):
        assert of_weights[target].backward_weight == ()
    (einsum,) = of_weights["aten.einsum.default"].backward_weight
    (both,) = of_weights["aten.einsum.default"].backward
    assert einsum == both  # x has no gradient here


def test_an_embedding_has_gradients_of_parameters_alone():
    for node, read, strategy, _ in cases(OF_GPT):
        if node.target == "aten.embedding.default":
            found = kernels_of(node, read, 100.0, strategy, RANKS, [True, False])
            assert found.backward_weight == found.backward != ()


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 4096)

    def forward(self, x):
        return F.dropout(self.linear(x), 0.1).sum()


class Streamed(TorchDispatchMode):
    """Counts kernels, and bytes that they read and write, each tensor once per kernel."""

    kernels, bytes = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            read = {id(x): x for x in tree_leaves(args) if isinstance(x, torch.Tensor)}
            made = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
            held = [x.numel() * x.element_size() for x in (*read.values(), *made)]
            self.kernels, self.bytes = self.kernels + 1, self.bytes + sum(held)
        return result


def test_dropout_streams_what_its_mask_is_made_of():
    graph = capture(Dropping(), (torch.randn(2, 16),)).at_batch(1024)
    (node,) = (n for n in graph.of_kind("call") if n.target == "aten.dropout.default")
    read = [graph.meta(ref) for ref in node.operands]
    for strategy in GraphRules(graph).strategies(node, AXIS):
        if strategy.outputs[0] == Shard(0):
            continue
        given = {"shard": (1, 1)} if strategy.splits_work else {}
        x = torch.randn(1024, 4096 // (RANKS if strategy.splits_work else 1))
        axis, draws = AxisGroup("tp", RANKS, 1, ""), Draws(seed=1, step=0, piece=0, pieces=2)
        with Streamed() as seen:
            invariant_dropout(x, 0.1, draws=draws, number=0, axis=axis, batch=(0, 1), **given)
        found = kernels_of(node, read, 2 * x.nbytes, strategy, RANKS)
        (forward,), (backward,) = found.forward, found.backward
        assert forward.bytes == pytest.approx(seen.bytes, rel=0.03)
        assert forward.kernels == pytest.approx(seen.kernels, abs=4)
        assert backward.bytes == 2 * x.nbytes + x.numel()
        assert found.inner_bytes == 8 * x.numel()


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 64), nn.BatchNorm1d(64)

    def forward(self, x):
        return self.norm(self.linear(x)).square().sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_norm_streams_what_its_steps_pass_on(dtype):
    graph = capture(Normed(), (torch.randn(2, 16),), dtype=dtype).at_batch(4096)
    (node,) = (n for n in graph.of_kind("call") if n.target == "autoplan.batch_norm.default")
    read = [graph.meta(ref) for ref in node.operands]
    for strategy in GraphRules(graph).strategies(node, AXIS):
        channels = 64 // (RANKS if strategy.splits_work else 1)
        x = torch.randn(4096, channels, dtype=dtype, requires_grad=True)
        norm, axis = nn.BatchNorm1d(channels).to(dtype), AxisGroup("tp", 1, 0, "")
        kept = norm.weight, norm.bias, norm.running_mean, norm.running_var, None
        given = {"draws": Draws(seed=1, step=0), "axis": axis}
        with Streamed() as ahead:
            y = synced_batch_norm(x, *kept, True, 0.1, 1e-5, **given)
        grad = torch.ones_like(y)
        with Streamed() as back:
            y.backward(grad)
        found = kernels_of(node, read, 2.0 * x.nbytes, strategy, RANKS)
        for seen, (work,) in ((ahead, found.forward), (back, found.backward)):
            assert work.bytes == pytest.approx(seen.bytes, rel=0.02)
            assert work.kernels == pytest.approx(seen.kernels, abs=6)
