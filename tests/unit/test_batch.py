"""The batch layout: pieces of the batch, run one by one, add up to one device."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autoplan.codegen.operators import operator
from autoplan.codegen.sizes import local_arguments
from autoplan.sharding.batch import BatchLayout, batch_layout
from autoplan.sharding.placement import Partial, Replicate, Shard, local_shape
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph, OpNode, Ref, TorchValue

BATCH = 6


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 3))

    def forward(self, x, y):
        return F.mse_loss(self.net(x), y)


class TinyGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 8), nn.Embedding(5, 8)
        self.norm, self.qkv = nn.LayerNorm(8), nn.Linear(8, 24)
        self.out, self.head = nn.Linear(8, 8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, labels):
        b, s = ids.shape
        x = self.tokens(ids) + self.places(torch.arange(s))
        q, k, v = self.qkv(self.norm(x)).view(b, s, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, 8))
        return F.cross_entropy(self.head(x).view(-1, 11), labels.view(-1), ignore_index=-100)


class PooledSum(nn.Module):
    """Batch on dim 1, a mean over the sequence, a weight given per sample."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, x, weight):
        pooled = self.net(x).mean(0)
        return (pooled.square().sum(1) * weight).sum() / weight.sum()


class CenteredInput(nn.Module):
    """Statistics of the inputs over the batch are counted ahead."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, x):
        return self.net(x - x.mean(0)).tanh().sum(1).mean()


class Encoder(nn.Module):
    """Attention whose sequence comes first inside: the batch is inside a merged dim."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x, y):
        return F.cross_entropy(self.layer(x).mean(1), y)


def encoder():
    return Encoder(), {"x": torch.randn(BATCH, 5, 8), "y": torch.randint(8, (BATCH,))}, None


class TwoViews(nn.Module):
    """Two copies of the batch behind one another, taken apart again."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, x):
        both = self.net(torch.cat([x, x.flip(1)])).tanh()
        first, second = both.chunk(2)
        return (first * second).sum()


def two_views():
    return TwoViews(), {"x": torch.randn(BATCH, 4)}, None


def regression():
    return Regression(), {"x": torch.randn(BATCH, 4), "y": torch.randn(BATCH, 3)}, None


def tiny_gpt():
    labels = torch.randint(11, (BATCH, 5))
    labels[0], labels[1, :3] = -100, -100
    return TinyGPT(), {"ids": torch.randint(11, (BATCH, 5)), "labels": labels}, None


def pooled_sum():
    return PooledSum(), {"x": torch.randn(5, BATCH, 4), "weight": torch.rand(BATCH)}, {"x": 1}


def centered_input():
    return CenteredInput(), {"x": torch.randn(BATCH, 4)}, None


@pytest.mark.parametrize(
    "make", [regression, tiny_gpt, pooled_sum, centered_input, encoder, two_views]
)
def test_pieces_add_up_to_one_device(make):
    torch.manual_seed(0)
    model, inputs, batch_dims = make()
    model.double()
    inputs = {
        key: value.double() if value.is_floating_point() else value for key, value in inputs.items()
    }
    model(**inputs).backward()
    graph = capture(model, inputs, batch_dims=batch_dims).at_batch(BATCH)
    layout = batch_layout(graph)
    assert layout.mixing == ()
    assert layout.loss == Partial()

    given = {
        node.name: inputs[node.target] for node in graph.of_kind("input")
    } | {
        node.name: model.get_parameter(node.target).detach().clone().requires_grad_()
        for node in graph.of_kind("parameter")
    }  # fmt: skip
    for pieces in (1, 2, 3, 6):
        loss = run_in_pieces(graph, layout, given, pieces)
        torch.testing.assert_close(loss, model(**inputs).detach(), rtol=1e-12, atol=0)
        for node in graph.of_kind("parameter"):
            expected = model.get_parameter(node.target).grad
            torch.testing.assert_close(given[node.name].grad, expected, rtol=1e-9, atol=1e-12)
            given[node.name].grad = None


def run_in_pieces(graph: OpGraph, layout: BatchLayout, given, pieces: int) -> torch.Tensor:
    """Runs forward and backward piece by piece; the sum of the losses."""
    parts = [
        {
            Ref(name): cut(tensor, layout.placements[Ref(name)], index, pieces)
            for name, tensor in given.items()
        }
        for index in range(pieces)
    ]
    counted: dict[Ref, torch.Tensor] = {}
    for ref in layout.hoisted:
        with torch.no_grad():
            values = [run(graph, layout, part, pieces, counted)[ref] for part in parts]
        counted[ref] = torch.stack(values).sum(0)
    total = torch.zeros(())
    for part in parts:
        loss = run(graph, layout, part, pieces, counted)[graph.output]
        loss.backward()
        total = total + loss.detach()
    return total


def cut(tensor, placement, index, pieces):
    if not isinstance(placement, Shard):
        return tensor
    return tensor.chunk(pieces, placement.dim)[index]


def run(graph, layout, values, pieces, counted):
    values = dict(values)
    for node in graph.nodes:
        if node.kind != "call":
            assert all(Ref(node.name) in values for _ in node.outputs)
            continue
        ports = layout.strategies[node.name].inputs
        operands = [
            counted[ref] if ref in counted and port.placement == Replicate() else values[ref]
            for ref, port in zip(node.operands, ports, strict=True)
        ]
        for index, result in enumerate(call(graph, layout, node, pieces, operands)):
            values[Ref(node.name, index)] = result
    return values


def call(graph: OpGraph, layout: BatchLayout, node: OpNode, pieces: int, operands):
    shapes = tuple(
        local_shape(meta.shape, layout.placements[Ref(node.name, index)], pieces)
        for index, meta in enumerate(node.outputs)
    )
    args, kwargs = local_arguments(node, shapes, graph.batch)
    remaining = iter(operands)

    def substitute(value):
        if isinstance(value, Ref):
            return next(remaining)
        if isinstance(value, tuple):
            return [substitute(item) for item in value]
        if isinstance(value, TorchValue):
            return torch.device("cpu") if value.kind == "device" else getattr(torch, value.name)
        return value

    args = [substitute(value) for value in args]
    result = operator(node.target)(*args, **{key: substitute(value) for key, value in kwargs})
    return result if isinstance(result, (list, tuple)) else [result]


class Mixing(nn.Module):
    """A linear layer whose results ``mix`` brings together over the batch."""

    def __init__(self, mix):
        super().__init__()
        self.net, self.mix = nn.Linear(4, 4), mix

    def forward(self, x):
        return self.mix(self.net(x))


@pytest.mark.parametrize(
    ("mix", "where"),
    [
        (lambda h: (h.T @ h @ h.T).square().sum(), "matmul"),
        (lambda h: (h - h.mean(0)).square().sum(), "sub"),
        (lambda h: h.softmax(0).square().sum(), "softmax"),
        (lambda h: h.cumsum(0).square().sum(), "cumsum"),
        (lambda h: h.sort(0).values[:, 0].sum(), "sort"),
        (lambda h: h.square().sum() / h.abs().sum(), "div"),
        (lambda h: (h * torch.arange(h.shape[0])[:, None]).sum(), "arange"),
        (lambda h: torch.cat([h, h * 2]).view(-1, 8).sigmoid().sum(), "view"),
        (lambda h: h.roll(1, 0).mul(h).sum(), "roll"),
        (lambda h: h.amax(0).sum(), "amax"),
        (lambda h: h.square().sum().sqrt(), "sqrt"),
        (lambda h: F.batch_norm(h, None, None, training=True).square().sum(), "batch_norm"),
    ],
)
def test_operators_that_mix_samples_are_named(mix, where):
    layout = batch_layout(capture(Mixing(mix), (torch.randn(2, 4),)))
    assert layout.mixing
    assert f"/{where}" in layout.mixing[0].partition(":")[0]
    assert layout.hoisted == ()


class Weighted(nn.Module):
    """A loss made of errors by sample and a weight that the batch comes with."""

    def __init__(self, loss):
        super().__init__()
        self.net, self.loss = nn.Linear(4, 4), loss
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x, weight):
        return self.loss(self.net(x).square().mean(1), weight, self.scale)


def sum_of_counted(error, weight, scale):
    share = weight / weight.sum()
    return (error * share).sum() / share.sum()


def whole_then_term(error, weight, scale):
    count = weight.sum()
    return (error * weight).sum() / count + scale * count


def term_then_whole(error, weight, scale):
    count = weight.sum()
    return scale * count + (error * weight).sum() / count


def sum_beside_whole(error, weight, scale):
    count = weight.sum()
    return (error * weight / count).sum() + (error / count).sum()


@pytest.mark.parametrize(
    ("loss", "where"),
    [(sum_of_counted, "div"), (whole_then_term, "add"), (term_then_whole, "div")],
)
def test_values_that_cannot_be_counted_once_ahead_mix_samples(loss, where):
    layout = batch_layout(capture(Weighted(loss), (torch.randn(2, 4), torch.rand(2))))
    assert where in layout.mixing[0].partition(":")[0]


def test_a_count_may_have_several_readers():
    layout = batch_layout(capture(Weighted(sum_beside_whole), (torch.randn(2, 4), torch.rand(2))))
    assert layout.mixing == ()
    assert len(layout.hoisted) == 1


def test_reasons_say_what_is_missing():
    def reason(mix):
        return batch_layout(capture(Mixing(mix), (torch.randn(2, 4),))).mixing[0]

    assert "/sum over the whole batch" in reason(lambda h: h.sum().sqrt())
    assert "mixes samples of the batch" in reason(lambda h: h.cumprod(0).sum())
    assert "mixes samples of the batch" in reason(lambda h: h.amax(0).sum())


def test_a_loss_without_the_batch_is_replicated():
    class Decay(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 4)

        def forward(self, x):
            return self.net.weight.square().sum()

    layout = batch_layout(capture(Decay(), (torch.randn(2, 4),)))
    assert layout.loss == Replicate()
    assert layout.mixing == ()


def test_layout_does_not_depend_on_the_batch():
    torch.manual_seed(0)
    model, inputs, _ = tiny_gpt()
    graph = capture(model, inputs)
    assert batch_layout(graph) == batch_layout(graph.at_batch(40))
