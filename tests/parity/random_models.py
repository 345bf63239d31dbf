"""Small modules that hypothesis puts together from layers, views, slices, reductions and ties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

WIDTH, LENGTH = 8, 4

Step = Callable[["RandomModel", int, Tensor, Tensor], Tensor]


def _split_join(model: RandomModel, at: int, x: Tensor, y: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([second, first * 2], -1)


def _heads(model: RandomModel, at: int, x: Tensor, y: Tensor) -> Tensor:
    heads = x.view(x.shape[0], LENGTH, 4, 2).transpose(1, 2)
    return (
        F.scaled_dot_product_attention(heads, heads.sin(), heads).transpose(1, 2).reshape(x.shape)
    )


def _written(model: RandomModel, at: int, x: Tensor, y: Tensor) -> Tensor:
    z = x * 1.5
    z += y
    return torch.relu_(z) + x


def _assigned(model: RandomModel, at: int, x: Tensor, y: Tensor) -> Tensor:
    z = x.clone()
    z[:, 0] = 0.5
    return z


def _gate(model: RandomModel, at: int, x: Tensor, y: Tensor) -> Tensor:
    return F.glu(torch.cat([x, y], -1), -1)


STEPS: dict[str, Step] = {
    "linear": lambda m, at, x, y: m.linears[at](x),
    "shared linear": lambda m, at, x, y: m.shared(x),
    "tied weight": lambda m, at, x, y: F.linear(x, m.shared.weight.t()),
    "norm": lambda m, at, x, y: m.norms[at](x),
    "residual": lambda m, at, x, y: x + torch.tanh(m.linears[at](x)),
    "other": lambda m, at, x, y: x + y,
    "buffer": lambda m, at, x, y: x * m.scale,
    "parameter": lambda m, at, x, y: x * m.gain[at] + m.offset,
    "gelu": lambda m, at, x, y: F.gelu(x),
    "softmax": lambda m, at, x, y: x.softmax(-1),
    "softmax over steps": lambda m, at, x, y: x.softmax(1),
    "slice": lambda m, at, x, y: F.pad(x[..., 1:], (1, 0)),
    "shift": lambda m, at, x, y: torch.cat([x[:, 1:], x[:, :1]], 1),
    "stride": lambda m, at, x, y: x[:, ::2].repeat_interleave(2, 1),
    "roll": lambda m, at, x, y: x.roll(1, 1),
    "flip": lambda m, at, x, y: x.flip(-1),
    "split and join": _split_join,
    "heads": _heads,
    "mean over steps": lambda m, at, x, y: x - x.mean(1, keepdim=True),
    "sum over width": lambda m, at, x, y: x / (1 + x.abs().sum(-1, keepdim=True)),
    "largest": lambda m, at, x, y: x - x.amax(-1, keepdim=True),
    "cumulated": lambda m, at, x, y: x.cumsum(1) / LENGTH,
    "flattened": lambda m, at, x, y: m.flat(x.flatten(1)).view(x.shape),
    "rows": lambda m, at, x, y: m.linears[at](x.reshape(-1, WIDTH)).view_as(x),
    "transposed": lambda m, at, x, y: m.steps(x.transpose(1, 2)).transpose(1, 2),
    "convolution": lambda m, at, x, y: m.conv(x.transpose(1, 2)).transpose(1, 2),
    "product": lambda m, at, x, y: (x @ y.transpose(1, 2)).tanh() @ x,
    "einsum": lambda m, at, x, y: torch.einsum("bsi,btj,ij->bst", x, y, m.shared.weight) @ x / 8,
    "masked": lambda m, at, x, y: x.masked_fill(y > 1, 0.0),
    "chosen": lambda m, at, x, y: torch.where(y > 0, x, x * 0.1),
    "written over": _written,
    "assigned": _assigned,
    "gate": _gate,
    "looked up": lambda m, at, x, y: x + m.table((y[..., 0] > 0).long()),
    "detached": lambda m, at, x, y: x * x.detach().sigmoid(),
    "sorted": lambda m, at, x, y: x.sort(-1)[0],
    "normalised": lambda m, at, x, y: F.normalize(x, dim=-1),
    "unbound": lambda m, at, x, y: torch.stack([t.sin() for t in x.unbind(1)], 1),
    "squeezed": lambda m, at, x, y: (x.unsqueeze(2) * m.gain[:2]).sum(2),
    "centred": lambda m, at, x, y: x - x.mean(0),
    "no rule": lambda m, at, x, y: x + torch.diag_embed(x[:, 0])[:, :LENGTH],
    "block": lambda m, at, x, y: m.blocks(x),
}

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": F.mse_loss,
    "sum": lambda x, y: (x * y).sum(),
    "smooth": F.smooth_l1_loss,
    "mean of means": lambda x, y: (x - y).square().mean(-1).mean(),
    "classes": lambda x, y: F.cross_entropy(x.flatten(0, 1), (y[..., 0] > 0).long().flatten()),
    "classes with weights": lambda x, y: F.cross_entropy(
        x[:, 0], (y[:, 0, 0] > 0).long(), weight=torch.arange(1.0, 9.0, dtype=x.dtype)
    ),
    "first step": lambda x, y: x[:, 0].logsumexp(-1).mean() + (y * x).sum() / x.shape[0],
}


@dataclass(frozen=True)
class Recipe:
    """What a module does: the names of its steps and of its loss."""

    steps: tuple[str, ...]
    loss: str


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.silu(self.up(x)))


class RandomModel(nn.Module):
    """Steps on ``x`` (batch, 4, 8), beside a second input ``y`` of that shape; returns its loss."""

    scale: Tensor

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        count = len(recipe.steps)
        self.linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(count))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(count))
        self.shared = nn.Linear(WIDTH, WIDTH)
        self.flat = nn.Linear(LENGTH * WIDTH, LENGTH * WIDTH)
        self.steps = nn.Linear(LENGTH, LENGTH)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.table = nn.Embedding(2, WIDTH)
        self.blocks = nn.Sequential(*(Layer() for _ in range(4)))
        self.gain = nn.Parameter(torch.ones(max(count, 2), WIDTH))
        self.offset = nn.Parameter(torch.zeros(WIDTH))
        self.register_buffer("scale", torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.linears[0](x)
        for at, name in enumerate(self.recipe.steps):
            x = STEPS[name](self, at, x, y)
        return LOSSES[self.recipe.loss](x, y)


def recipes() -> st.SearchStrategy[Recipe]:
    names = st.lists(st.sampled_from(sorted(STEPS)), min_size=2, max_size=6).map(tuple)
    return st.builds(Recipe, steps=names, loss=st.sampled_from(sorted(LOSSES)))
