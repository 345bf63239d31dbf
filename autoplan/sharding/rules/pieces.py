"""Taking tensors apart and joining them along a dim.

Equal pieces are two letters, ``(piece, index)``: a rank that holds its chunk of every piece of the
whole holds its chunk of each piece. Unequal pieces, and parts cut from a dim, keep the dim whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autoplan.sharding.equation import Dims, Equation, Letters, Shape
from autoplan.sharding.rules.base import Call, letters, names, sizes

_LINEAR = (frozenset({0}),)


def _with(dims: Dims, at: int, here: Letters) -> Dims:
    return (*dims[:at], here, *dims[at + 1 :])


def _pieces(
    whole: Shape, pieces: Sequence[Shape], at: int
) -> tuple[Dims, list[Dims], dict[str, int], set[str]]:
    """Letters of a tensor and of its pieces along a dim, their sizes, and which stay whole."""
    dims, extents = letters(whole), sizes(whole)
    lengths = [piece[at] for piece in pieces]
    if len(set(lengths)) == 1:
        piece: Letters = ("piece",) if len(pieces) > 1 else ()
        index: Letters = (f"d{at}",) if lengths[0] != 1 else ()
        extents.update({"piece": len(pieces), f"d{at}": lengths[0]})
        parts = [_with(dims, at, index)] * len(pieces)
        return _with(dims, at, (*piece, *index)), parts, extents, {"piece"}
    extents.update({f"part{number}": length for number, length in enumerate(lengths)})
    parts = [_with(dims, at, (f"part{number}",)) for number in range(len(pieces))]
    return dims, parts, extents, {f"d{at}", *(f"part{number}" for number in range(len(pieces)))}


def _split(call: Call) -> Equation:
    dims, parts, extents, whole = _pieces(call.shapes[0], call.output_shapes, call.dim(2))
    return Equation(
        inputs=(dims,),
        outputs=tuple(parts),
        sizes=extents,
        whole=frozenset(whole),
        linear=_LINEAR,
    )


def _cat(call: Call) -> Equation | None:
    at = call.dim(1)
    if len({len(shape) for shape in call.shapes}) > 1:
        return None
    dims, parts, extents, whole = _pieces(call.outputs[0].shape, call.shapes, at)
    return Equation(
        inputs=tuple(parts),
        outputs=(dims,),
        sizes=extents,
        whole=frozenset(whole),
        linear=(frozenset(range(len(parts))),),
    )


def _stack(call: Call) -> Equation:
    shape = call.shapes[0]
    at = call.argument(1, "dim", 0) % (len(shape) + 1)
    dims = letters(shape)
    new: Letters = ("piece",) if len(call.inputs) > 1 else ()
    return Equation(
        inputs=(dims,) * len(call.inputs),
        outputs=((*dims[:at], new, *dims[at:]),),
        sizes={**sizes(shape), "piece": len(call.inputs)},
        whole=frozenset({"piece"}),
        linear=(frozenset(range(len(call.inputs))),),
    )


def _unbind(call: Call) -> Equation:
    """Every output lacks the dim; so does a select, which is one of them."""
    shape = call.shapes[0]
    at = call.dim(1)
    dims = letters(shape)
    return Equation(
        inputs=(dims,),
        outputs=((*dims[:at], *dims[at + 1 :]),) * len(call.outputs),
        sizes=sizes(shape),
        whole=frozenset({f"d{at}"}),
        linear=_LINEAR,
    )


def _flip(call: Call) -> Equation:
    shape = call.shapes[0]
    flipped = [dim % len(shape) for dim in call.argument(1, "dims")]
    return Equation(
        inputs=(letters(shape),),
        outputs=(letters(shape),),
        sizes=sizes(shape),
        whole=names(flipped),
        linear=_LINEAR,
    )


def _roll(call: Call) -> Equation:
    """Without dims, all elements move as one row."""
    shape = call.shapes[0]
    rolled = [dim % len(shape) for dim in call.argument(2, "dims", ())] or range(len(shape))
    return Equation(
        inputs=(letters(shape),),
        outputs=(letters(shape),),
        sizes=sizes(shape),
        whole=names(rolled),
        linear=_LINEAR,
    )


def _resized(call: Call, linear: bool) -> Equation:
    """Dims whose size changes stay whole; the others are loops."""
    source, result = call.shapes[0], call.outputs[0].shape
    changed = [dim for dim in range(len(source)) if source[dim] != result[dim]]
    out = letters(source)
    for dim in changed:
        out = _with(out, dim, (f"new{dim}",))
    return Equation(
        inputs=(letters(source),),
        outputs=(out,),
        sizes={**sizes(source), **{f"new{dim}": result[dim] for dim in changed}},
        whole=frozenset(f"{name}{dim}" for name in ("d", "new") for dim in changed),
        linear=_LINEAR if linear else (),
    )


def _slice(call: Call) -> Equation:
    return _resized(call, linear=True)


def _glu(call: Call) -> Equation:
    """Halves of a dim are multiplied, so it stays whole."""
    made = _resized(call, linear=False)
    return replace(made, whole=made.whole | {f"d{call.dim(1, default=-1)}"})


def _pad(call: Call) -> Equation:
    """Padding that keeps the size of a dim (one more here, one less there) is not a loop."""
    source = call.shapes[0]
    pad = call.argument(1, "pad")
    touched = {len(source) - 1 - index // 2 for index, count in enumerate(pad) if count}
    made = _resized(call, linear=False)
    return Equation(
        inputs=made.inputs,
        outputs=made.outputs,
        sizes=made.sizes,
        whole=made.whole | {f"d{dim}" for dim in touched},
    )


RULES = {
    "aten.split.Tensor": _split,
    "aten.split_with_sizes.default": _split,
    "aten.chunk.default": _split,
    "aten.cat.default": _cat,
    "aten.stack.default": _stack,
    "aten.unbind.int": _unbind,
    "aten.flip.default": _flip,
    "aten.roll.default": _roll,
    "aten.select.int": _unbind,
    "aten.slice.Tensor": _slice,
    "aten.narrow.default": _slice,
    "aten.glu.default": _glu,
    "aten.pad.default": _pad,
    "aten.constant_pad_nd.default": _pad,
}
