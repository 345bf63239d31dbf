"""What hypothesis draws for a call: shapes whose dims often divide by the ranks, and tensors."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.rules.oracle import Example


class Draw:
    """Draws the parts of one example on ``ranks`` ranks."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data
        self.ranks = self.of(2, 3, 4)
        torch.manual_seed(self.of(0, 1, 2, 3))

    def of(self, *choices):
        return self._data.draw(st.sampled_from(choices))

    def size(self) -> int:
        return self.of(self.ranks, 1, 2 * self.ranks, 3, 2)

    def shape(self, least: int = 0, most: int = 4) -> tuple[int, ...]:
        rank = self.of(*reversed(range(least, most + 1)))
        return tuple(self.size() for _ in range(rank))

    def broadcast(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that is broadcast to ``shape``."""
        kept = shape[len(shape) - self.of(*reversed(range(len(shape) + 1))) :]
        return tuple(self.of(size, 1) for size in kept)

    def dim(self, shape: tuple[int, ...]) -> int:
        return self.of(*range(-len(shape), len(shape)))

    def order(self, rank: int) -> list[int]:
        return self._data.draw(st.permutations(range(rank)))

    def floats(self, *shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, requires_grad=True)

    def positive(self, *shape: int) -> Tensor:
        return (torch.rand(shape, dtype=torch.float64) + 0.5).requires_grad_()

    def integers(self, top: int, *shape: int) -> Tensor:
        return torch.randint(top, shape)

    def bools(self, *shape: int) -> Tensor:
        return torch.rand(shape) < 0.5

    def call(self, target: str, *args, **kwargs) -> Example:
        return Example(target, args, kwargs)
