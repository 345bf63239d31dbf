"""Examples of operators that show, take apart, join or make tensors."""

from __future__ import annotations

import math

import torch

from tests.rules.draw import Draw
from tests.rules.oracle import Example


def _other_shape(draw: Draw, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape of as many elements, its dims merged and cut at random."""
    left, dims = math.prod(shape), []
    while left > 1 and len(dims) < 4:
        divisors = [size for size in range(1, left + 1) if left % size == 0]
        dims.append(draw.of(*divisors))
        left //= dims[-1]
    return (*dims, left) if left > 1 or not shape else tuple(dims)


def view(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    return draw.call(target, draw.floats(*shape), list(_other_shape(draw, shape)))


def view_as(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    return draw.call(target, draw.floats(*shape), draw.floats(*_other_shape(draw, shape)))


def expand_as(draw: Draw, target: str) -> Example:
    shape = draw.shape(0, 4)
    return draw.call(target, draw.floats(*draw.broadcast(shape)), draw.floats(*shape))


def flatten(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    start = draw.of(*range(len(shape)))
    return draw.call(target, draw.floats(*shape), start, draw.of(*range(start, len(shape))))


def unflatten(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 3)
    dim = draw.dim(shape)
    size = shape[dim]
    first = draw.of(*[factor for factor in range(1, size + 1) if size % factor == 0])
    return draw.call(target, draw.floats(*shape), dim, [first, size // first])


def unsqueeze(draw: Draw, target: str) -> Example:
    shape = draw.shape(0, 3)
    return draw.call(target, draw.floats(*shape), draw.of(*range(-len(shape) - 1, len(shape) + 1)))


def squeeze(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    x = draw.floats(*shape)
    if target == "aten.squeeze.default":
        return draw.call(target, x)
    dims = sorted({draw.of(*range(len(shape))) for _ in range(2)})
    return draw.call(target, x, dims[0] if target == "aten.squeeze.dim" else dims)


def permute(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    return draw.call(target, draw.floats(*shape), draw.order(len(shape)))


def transpose(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    return draw.call(target, draw.floats(*shape), draw.dim(shape), draw.dim(shape))


def t(draw: Draw, target: str) -> Example:
    return draw.call(target, draw.floats(*draw.shape(0, 2)))


def matrix_transpose(draw: Draw, target: str) -> Example:
    return draw.call(target, draw.floats(*draw.shape(2, 4)))


def expand(draw: Draw, target: str) -> Example:
    shape = draw.shape(0, 4)
    small = draw.broadcast(shape)
    return draw.call(target, draw.floats(*small), list(shape))


def broadcast_tensors(draw: Draw, target: str) -> Example:
    shape = draw.shape(0, 4)
    tensors = [draw.floats(*draw.broadcast(shape)) for _ in range(draw.of(1, 2, 3))]
    return draw.call(target, tensors)


def repeat(draw: Draw, target: str) -> Example:
    shape = draw.shape(0, 3)
    counts = [draw.of(1, 2, 3, draw.ranks) for _ in range(len(shape) + draw.of(0, 1))]
    return draw.call(target, draw.floats(*shape), counts)


def triangle(draw: Draw, target: str) -> Example:
    return draw.call(target, draw.floats(*draw.shape(2, 4)), draw.of(0, 1, -1))


def repeat_interleave(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    count, dim = draw.of(1, 2, 3), draw.of(draw.dim(shape), None)
    length = math.prod(shape) if dim is None else shape[dim]
    stated = draw.of({}, {"output_size": count * length})
    return draw.call(target, draw.floats(*shape), count, dim, **stated)


def chunk(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    return draw.call(target, draw.floats(*shape), draw.of(1, 2, 3), draw.dim(shape))


def _in_pieces(draw: Draw) -> tuple[torch.Tensor, list[int], int]:
    shape = draw.shape(1, 4)
    dim = draw.dim(shape)
    sizes = [draw.size()] * draw.of(1, 2, 3)
    sizes += draw.of([], [], [draw.size()])
    at = dim % len(shape)
    return draw.floats(*shape[:at], sum(sizes), *shape[at + 1 :]), sizes, dim


def split(draw: Draw, target: str) -> Example:
    x, sizes, dim = _in_pieces(draw)
    return draw.call(target, x, sizes if target.startswith("aten.split_with") else sizes[0], dim)


def cat(draw: Draw, target: str) -> Example:
    x, sizes, dim = _in_pieces(draw)
    return draw.call(target, list(x.split(sizes, dim)), dim)


def stack(draw: Draw, target: str) -> Example:
    shape = draw.shape(0, 3)
    tensors = [draw.floats(*shape) for _ in range(draw.of(1, 2, 3))]
    return draw.call(target, tensors, draw.of(*range(-len(shape) - 1, len(shape) + 1)))


def flip(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    return draw.call(target, draw.floats(*shape), [draw.dim(shape)])


def roll(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    dims = draw.of([draw.dim(shape)], sorted({draw.dim(shape) % len(shape) for _ in range(2)}), [])
    return draw.call(target, draw.floats(*shape), [draw.of(1, -1, 2)] * max(1, len(dims)), dims)


def unbind(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    return draw.call(target, draw.floats(*shape), draw.dim(shape))


def select(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    dim = draw.dim(shape)
    return draw.call(target, draw.floats(*shape), dim, draw.of(*range(-shape[dim], shape[dim])))


def slice_(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    dim = draw.dim(shape)
    end = draw.of(shape[dim], 2**63 - 1, shape[dim] - 1)
    return draw.call(target, draw.floats(*shape), dim, draw.of(0, 1, -1), end, draw.of(1, 2))


def narrow(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    dim = draw.dim(shape)
    length = draw.of(*range(1, shape[dim] + 1))
    return draw.call(target, draw.floats(*shape), dim, shape[dim] - length, length)


def pad(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 3)
    amounts = [draw.of(0, 1, -1) for _ in range(2 * draw.of(*range(1, len(shape) + 1)))]
    for index in range(0, len(amounts), 2):
        size = shape[len(shape) - 1 - index // 2]
        if size + amounts[index] + amounts[index + 1] < 1:
            amounts[index : index + 2] = [0, 0]
    value = draw.of(0.0, 2.0)
    extra = ("constant", value) if target == "aten.pad.default" else (value,)
    return draw.call(target, draw.floats(*shape), amounts, *extra)


def factory(draw: Draw, target: str) -> Example:
    size = list(draw.shape())
    return draw.call(target, size, *([1.5] if "full" in target else []), dtype=torch.float64)


def drawn(draw: Draw, target: str) -> Example:
    """No two draws are alike, so that only sizes can be compared: there are no elements."""
    return draw.call(target, [0, *draw.shape(1, 3)], dtype=torch.float64)


def arange(draw: Draw, target: str) -> Example:
    args = {"default": (7,), "start": (1, 7), "start_step": (1, 7, 2)}[target.split(".")[2]]
    return draw.call(target, *args)


def counted(draw: Draw, target: str) -> Example:
    args = {"linspace": (0, 1, 4), "eye": (4,)}.get(target.split(".")[1], (4, 4, -1))
    return draw.call(target, *args)


def scalar_tensor(draw: Draw, target: str) -> Example:
    return draw.call(target, 2.5, dtype=torch.float64)


CALLS = {
    "aten.view.default": view,
    "aten.reshape.default": view,
    "aten._unsafe_view.default": view,
    "aten.flatten.using_ints": flatten,
    "aten.unflatten.int": unflatten,
    "aten.view_as.default": view_as,
    "aten.reshape_as.default": view_as,
    "aten.expand_as.default": expand_as,
    "aten.broadcast_to.default": expand,
    "aten.unsqueeze.default": unsqueeze,
    "aten.squeeze.default": squeeze,
    "aten.squeeze.dim": squeeze,
    "aten.squeeze.dims": squeeze,
    "aten.permute.default": permute,
    "aten.transpose.int": transpose,
    "aten.t.default": t,
    "aten.numpy_T.default": t,
    "aten.mT.default": matrix_transpose,
    "aten.expand.default": expand,
    "aten.broadcast_tensors.default": broadcast_tensors,
    "aten.repeat.default": repeat,
    "aten.repeat_interleave.self_int": repeat_interleave,
    "aten.tril.default": triangle,
    "aten.triu.default": triangle,
    "aten.split.Tensor": split,
    "aten.split_with_sizes.default": split,
    "aten.chunk.default": chunk,
    "aten.cat.default": cat,
    "aten.stack.default": stack,
    "aten.flip.default": flip,
    "aten.roll.default": roll,
    "aten.unbind.int": unbind,
    "aten.select.int": select,
    "aten.slice.Tensor": slice_,
    "aten.narrow.default": narrow,
    "aten.pad.default": pad,
    "aten.constant_pad_nd.default": pad,
    "aten.full.default": factory,
    "aten.zeros.default": factory,
    "aten.ones.default": factory,
    "aten.rand.default": drawn,
    "aten.randn.default": drawn,
    "aten.scalar_tensor.default": scalar_tensor,
    "aten.arange.default": arange,
    "aten.arange.start": arange,
    "aten.arange.start_step": arange,
    "aten.linspace.default": counted,
    "aten.eye.default": counted,
    "aten.tril_indices.default": counted,
    "aten.triu_indices.default": counted,
}
