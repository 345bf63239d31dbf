"""The base of every module in an emitted program."""

from __future__ import annotations

from typing import Any

from torch import nn


class Container(nn.Module):
    """Holds what a module of the original held; ``container[0]`` is its child ``0``.

    Attributes:
        draws_before: number of the first dropout of a block.
    """

    draws_before: int = 0

    def __getitem__(self, index: int) -> Any:
        return getattr(self, str(index))
