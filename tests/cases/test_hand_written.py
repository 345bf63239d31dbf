"""Models as people write them by hand equal one device under random plans, and split the batch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from autoplan.runtime.comparison import loss_on
from autoplan.sharding.batch import batch_layout
from autoplan.sharding.rules import opaque_operators
from autoplan.trace.capture import capture
from tests.parity.choose import random_program
from tests.parity.models import initialise
from tests.parity.simulate import assert_same, one_device, sharded

BATCH = 4


class Recurrent(nn.Module):
    """A cell in a loop; its first state is made from the size of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTMCell(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], 8)
        weight = x.new_ones(x.shape[1])
        scale = torch.arange(8, device=x.device).type_as(x)
        states = []
        for step in x.unbind(1):
            h, c = self.cell(step, (h, c))
            states.append(h)
        return F.mse_loss(self.out(torch.stack(states, 1)) * weight[:, None] * scale, y)


class Styled(nn.Module):
    """Convolutions by direction and length, and channels normalised within a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.first = weight_norm(nn.Conv1d(8, 8, 3, padding=1))
        self.second = weight_norm(nn.Conv1d(8, 8, 1), dim=1)
        self.norms = nn.ModuleList(nn.InstanceNorm1d(8, affine=affine) for affine in (True, False))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        x = self.norms[0](self.first(x)).relu()
        return F.mse_loss(self.norms[1](self.second(x)).transpose(1, 2), y)


class Translator(nn.Module):
    """The causal mask is a tensor, whose values PyTorch would look at."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(4, dtype=x.dtype)
        return F.mse_loss(self.net(x, y, tgt_mask=mask, src_key_padding_mask=x[..., 0] > 2), y)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_masks_of_attention_have_the_precision_of_the_model(dropout):
    model = nn.Transformer(8, 2, 1, 1, 16, dropout=dropout, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    batch = {"src": torch.randn(BATCH, 4, 8), "tgt": torch.randn(BATCH, 4, 8)}

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model
            self.register_buffer("mask", mask)

        def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
            return self.net(src, tgt, tgt_mask=self.mask).square().mean()

    graph = capture(Masked(), batch, dtype=torch.bfloat16)
    products = [
        node for node in graph.of_kind("call")
        if node.target in ("aten.matmul.default", "aten.scaled_dot_product_attention.default")
    ]  # fmt: skip
    assert products
    assert {graph.meta(ref).dtype for node in products for ref in node.operands} == {"bfloat16"}


class Repeating(nn.Module):
    """Heads within samples, samples within heads, and what is the same for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.query = (
            nn.Linear(8, 24),
            nn.Linear(8, 8),
            nn.Parameter(torch.ones(4, 8)),
        )
        self.register_buffer("slopes", torch.tensor([0.5, 0.25]))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        b = x.shape[0]
        bias = self.slopes[:, None, None].to(x.dtype) * torch.arange(4)
        q, k, v = (
            t.view(b, 4, 2, 4).transpose(1, 2).flatten(0, 1) for t in self.qkv(x).chunk(3, -1)
        )
        inner = torch.baddbmm(bias.repeat(b, 1, 1), q, k.mT).softmax(-1) @ v
        outer = torch.cat(x.split(4, dim=-1)) * bias.repeat_interleave(b, dim=0).mT
        both = inner.view(b, 2, 4, 4) + outer.view(2, b, 4, 4).transpose(0, 1)
        queries = self.query.repeat(b, 1).view(b, 4, 8) + torch.tile(self.query[:1], (b, 4, 1))
        return F.mse_loss(self.out(both.transpose(1, 2).flatten(2)) + queries, y)


class Dropping(nn.Module):
    """Whole channels, and whole layers for some samples, are dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.drop = nn.ModuleList(nn.Linear(8, 8) for _ in range(2)), nn.Dropout1d(0.5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            kept = x.new_empty(x.shape[0], 1, 1).bernoulli_(0.75)
            x = x + self.drop(layer(x)) * kept.div_(0.75)
        return F.mse_loss(x, y)


def test_layers_that_are_dropped_by_a_floor_have_the_mask_of_a_dropout():
    class Floored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            kept = (0.75 + torch.rand((x.shape[0], 1, 1), dtype=x.dtype)).floor_()
            return (x + self.net(x).div(0.75) * kept).square().mean()

    calls = list(capture(Floored(), (torch.randn(BATCH, 4, 8),)).of_kind("call"))
    assert not [node for node in calls if "rand" in node.target]
    assert [node.args[1] for node in calls if node.target == "aten.dropout.default"] == [0.25]


class Shared(nn.Module):
    """One layer at four places of a list; the loss comes beside what the model returns."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.first, self.layers = nn.Linear(8, 8), nn.ModuleList([layer] * 4)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x)
        return x, F.mse_loss(x, y)


def test_a_layer_at_several_places_is_a_block_at_each():
    batch = {name: torch.randn(BATCH, 4, 8) for name in "xy"}
    blocks = capture(Shared(), batch).blocks
    assert [block.path for block in blocks] == [f"layers.{index}" for index in range(4)]
    assert {block.kind for block in blocks} == {"layers.0"}


@pytest.mark.parametrize("build", [Recurrent, Styled, Translator, Repeating, Dropping, Shared])
def test_models_by_hand_equal_one_device(build):
    model = initialise(build(), torch.float64)
    batch = {name: torch.randn(BATCH, 4, 8, dtype=torch.float64) for name in "xy"}
    graph = capture(model, batch).at_batch(BATCH)
    assert all(operator.keeps_samples_apart for operator in opaque_operators(graph))
    assert not batch_layout(graph).mixing
    truth = one_device(model, lambda: loss_on(model, batch, None))
    for tp, dp, microbatches in ((2, 1, 1), (4, 2, 2)):
        emitted = random_program(graph, tp, tp, dp=dp, num_microbatches=microbatches)
        assert_same(sharded(emitted, model, batch), truth)
