"""The exact factor map of a view: which digits of the element index each dim of either shape holds.

A view keeps the order of elements, so an element's position is one number that both shapes write
with different digits. Cutting both lists of dims at every size that either of them uses gives the
common digits, as long as the cuts divide one another. Where they do not (``4 x 6`` seen as
``6 x 4``), only the leading common divisor is shared, and the rest stays whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from autoplan.sharding.equation import Dims, Equation, Shape

_Part = tuple[list[int], list[int]]


def view_equation(old: Shape, new: Shape) -> Equation | None:
    """The equation of reading a contiguous tensor of shape ``old`` as ``new``.

    Letters are named after the dim of ``new`` that holds them: ``d2``, then ``d2.1`` for the next
    digit of that dim. None for a tensor without elements.
    """
    assert math.prod(old) == math.prod(new), f"{old} cannot be viewed as {new}"
    if math.prod(old) == 0:
        return None
    digits = _Digits(old, new)
    for ins, outs in _groups(old, new):
        digits.add_group(ins, outs)
    return Equation(
        inputs=(digits.dims(0),),
        outputs=(digits.dims(1),),
        sizes=digits.sizes,
        whole=frozenset(digits.whole),
        linear=(frozenset({0}),),
    )


class _Digits:
    """Collects the letters of both shapes, group by group."""

    def __init__(self, old: Shape, new: Shape) -> None:
        self.shapes = (old, new)
        self.letters: tuple[dict[int, list[str]], dict[int, list[str]]] = ({}, {})
        self.sizes: dict[str, int] = {}
        self.whole: set[str] = set()

    def dims(self, side: int) -> Dims:
        held = self.letters[side]
        return tuple(tuple(held.get(dim, ())) for dim in range(len(self.shapes[side])))

    def add_group(self, ins: Sequence[int], outs: Sequence[int]) -> None:
        """Share out the digits of dims ``ins`` of the old shape, seen as ``outs`` of the new."""
        inner = self._ends(0, ins), self._ends(1, outs)
        cuts = sorted({1, *inner[0], *inner[1]})
        if all(high % low == 0 for low, high in pairwise(cuts)):
            for low, high in pairwise(cuts):
                self._digit(
                    high // low, (_holder(ins, inner[0], low), _holder(outs, inner[1], low))
                )
            return
        lead = math.gcd(self.shapes[0][ins[0]], self.shapes[1][outs[0]])
        if lead > 1:
            self._digit(lead, (ins[0], outs[0]))
        self._rest(0, ins, lead)
        self._rest(1, outs, lead)

    def _ends(self, side: int, dims: Sequence[int]) -> list[int]:
        """Products of the sizes up to and with each dim, from the left."""
        sizes = [self.shapes[side][dim] for dim in dims]
        return [math.prod(sizes[: index + 1]) for index in range(len(sizes))]

    def _digit(self, size: int, holders: tuple[int, int]) -> None:
        before = len(self.letters[1].get(holders[1], ()))
        letter = f"d{holders[1]}" + (f".{before}" if before else "")
        self.sizes[letter] = size
        for side in (0, 1):
            self.letters[side].setdefault(holders[side], []).append(letter)

    def _rest(self, side: int, dims: Sequence[int], lead: int) -> None:
        for index, dim in enumerate(dims):
            letter = f"{'old' if side == 0 else 'new'}{dim}"
            self.sizes[letter] = self.shapes[side][dim] // (1 if index else lead)
            self.letters[side].setdefault(dim, []).append(letter)
            self.whole.add(letter)


def _holder(dims: Sequence[int], ends: Sequence[int], start: int) -> int:
    return next(dim for dim, end in zip(dims, ends, strict=True) if start < end)


def _groups(old: Shape, new: Shape) -> Iterator[_Part]:
    """Smallest runs of dims of both shapes with equal products; dims of size one are in none."""
    left = [dim for dim, size in enumerate(old) if size != 1]
    right = [dim for dim, size in enumerate(new) if size != 1]
    while left:
        ins, outs = [left.pop(0)], [right.pop(0)]
        while (a := math.prod(old[i] for i in ins)) != (b := math.prod(new[j] for j in outs)):
            if a < b:
                ins.append(left.pop(0))
            else:
                outs.append(right.pop(0))
        yield ins, outs
