"""Operators as index equations: ``... k, n k, n -> ... n`` is a linear layer.

Every letter is a loop over an index of the operator. A letter that stands in an output computes
independent pieces of it; a letter that no output has is summed over. A dim of a tensor is written
as the letters it is made of, leftmost slowest: ``(h d)`` is ``h`` groups of ``d``, so that views,
splits and concatenations are equations as well. Which letters may be split over a mesh axis, and
what that does to every operand, follows from the equation alone (``enumerate.py``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Letters = tuple[str, ...]
Dims = tuple[Letters, ...]
Shape = tuple[int, ...]

_DIM = re.compile(r"\(([^)]*)\)|(\S+)")


@dataclass(frozen=True, slots=True)
class LocalOp:
    """A function that stands in for the operator when a letter is split.

    ``completes`` says that it sums over the ranks itself, so that outputs without the letter are
    whole on every rank rather than partial.
    """

    name: str
    completes: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Equation:
    """The loops of one operator call.

    Attributes:
        inputs, outputs: letters of each dim of each tensor operand and output; an empty dim is
            of size one (or broadcast).
        sizes: extent of every letter.
        whole: letters that no rank may split.
        only_batch_axes: letters that ``tp`` may not split, though the axes of the batch may.
        additive: positions of operands that are added to the result (a bias); when a summed letter
            is split, only one rank may add them.
        linear: groups of operands such that partial sums of all of a group, with the other
            operands complete, give partial sums of the outputs.
        local_ops: the stand-in for letters that the operator itself cannot split.
    """

    inputs: tuple[Dims, ...]
    outputs: tuple[Dims, ...]
    sizes: Mapping[str, int]
    whole: frozenset[str] = frozenset()
    only_batch_axes: frozenset[str] = frozenset()
    additive: frozenset[int] = frozenset()
    linear: tuple[frozenset[int], ...] = ()
    local_ops: Mapping[str, LocalOp] = field(default_factory=dict)

    @property
    def letters(self) -> tuple[str, ...]:
        """All letters, outputs first, in the order in which they are written."""
        found = (letter for dims in (*self.outputs, *self.inputs) for dim in dims for letter in dim)
        return tuple(dict.fromkeys(found))


def equation(
    text: str,
    inputs: Sequence[Shape],
    outputs: Sequence[Shape],
    *,
    whole: str = "",
    additive: Sequence[int] = (),
    linear: Sequence[Sequence[int]] = (),
    local_ops: Mapping[str, LocalOp] | None = None,
) -> Equation:
    """The equation that ``text`` writes for tensors of these shapes.

    ``...`` stands for any number of leading dims, aligned on the right as in broadcasting; their
    letters are ``d0``, ``d1``, ... as in the output. ``whole`` lists letters, separated by spaces.
    A dim of size one whose letter is larger elsewhere is broadcast. A letter inside parentheses
    must stand alone elsewhere, or be the only unknown of its dim.
    """
    left, right = text.split("->")
    terms = [_parse(term) for term in (*left.split(","), *right.split(","))]
    shapes = [*inputs, *outputs]
    assert len(terms) == len(shapes), f"{text!r} does not have {len(shapes)} tensors"
    lead = max(
        (
            len(shape) - len(term) + 1
            for term, shape in zip(terms, shapes, strict=True)
            if ("...",) in term
        ),
        default=0,
    )
    written = [_expand(term, len(shape), lead) for term, shape in zip(terms, shapes, strict=True)]
    sizes = _sizes(written, shapes)
    dims = [_broadcast(term, shape, sizes) for term, shape in zip(written, shapes, strict=True)]
    return Equation(
        inputs=tuple(dims[: len(inputs)]),
        outputs=tuple(dims[len(inputs) :]),
        sizes=sizes,
        whole=frozenset(whole.split()),
        additive=frozenset(additive),
        linear=tuple(frozenset(group) for group in linear),
        local_ops=local_ops or {},
    )


def extent(letters: Letters, sizes: Mapping[str, int]) -> int:
    """Size of a dim made of ``letters``."""
    return math.prod(sizes[letter] for letter in letters)


def _parse(term: str) -> Dims:
    return tuple(
        tuple(match[1].split()) if match[1] is not None else (match[2],)
        for match in _DIM.finditer(term)
    )


def _expand(term: Dims, rank: int, lead: int) -> Dims:
    if ("...",) not in term:
        assert len(term) == rank, f"{term} does not describe a tensor of rank {rank}"
        return term
    here = rank - len(term) + 1
    at = term.index(("...",))
    names = tuple((f"d{index}",) for index in range(lead - here, lead))
    return (*term[:at], *names, *term[at + 1 :])


def _sizes(terms: Sequence[Dims], shapes: Sequence[Shape]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    pairs = [
        pair
        for term, shape in zip(terms, shapes, strict=True)
        for pair in zip(term, shape, strict=True)
    ]
    for dim, size in pairs:
        if len(dim) == 1 and size != 1:
            assert sizes.setdefault(dim[0], size) == size, f"{dim[0]} has two sizes: {pairs}"
    for dim, size in pairs:
        for letter in _unknown(dim, sizes):
            known = math.prod(sizes[other] for other in dim if other in sizes)
            sizes[letter] = size // known if len(dim) > 1 else 1
    return sizes


def _unknown(dim: Letters, sizes: Mapping[str, int]) -> Iterator[str]:
    yield from [letter for letter in dim if letter not in sizes]


def _broadcast(term: Dims, shape: Shape, sizes: Mapping[str, int]) -> Dims:
    dims = tuple(
        () if size == 1 else tuple(letter for letter in dim if sizes[letter] != 1)
        for dim, size in zip(term, shape, strict=True)
    )
    for dim, size in zip(dims, shape, strict=True):
        assert extent(dim, sizes) == size, f"{term} does not describe {shape}"
    return dims
