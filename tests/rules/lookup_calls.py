"""Examples of reading and writing by index, and of recurrent layers."""

from __future__ import annotations

import torch

from tests.rules.draw import Draw
from tests.rules.oracle import Example


def embedding(draw: Draw, target: str) -> Example:
    rows, ids = 2 * draw.ranks, draw.shape(0, 3)
    padding, by_frequency = draw.of((-1, False), (0, False), (-1, True))
    table, index = draw.floats(rows, draw.size()), draw.integers(rows, *ids)
    return draw.call(target, table, index, padding, by_frequency)


def bags(draw: Draw, target: str) -> Example:
    """Numbers by sample, or in one row with the offsets at which bags start, some of them empty."""
    rows, samples, length = 2 * draw.ranks, draw.size(), draw.size()
    mode, padding = draw.of("sum", "mean", "max"), draw.of(-1, 0, rows - 1)
    starts = draw.of(False, False, True)
    ids = draw.integers(rows, *((samples * length,) if starts else (samples, length)))
    weights = draw.floats(*ids.shape) if mode == "sum" and draw.of(True, False) else None
    last = starts and draw.of(True, False)
    offsets = None
    if starts:
        ends = draw.integers(samples * length + 1, samples - 1).sort().values
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), ends])
        if last:
            offsets = torch.cat([offsets, torch.tensor([samples * length])])
    table = draw.floats(rows, draw.size())
    return draw.call(target, table, ids, offsets, weights, mode, padding, last)


def one_hot(draw: Draw, target: str) -> Example:
    return draw.call(target, draw.integers(5, *draw.shape(0, 3)), 5)


def gather(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    dim = draw.dim(shape)
    index = list(shape)
    index[dim] = draw.size()
    other = draw.of(*range(len(shape)))
    if other != dim % len(shape):
        index[other] = draw.of(index[other], 1)
    return draw.call(target, draw.floats(*shape), dim, draw.integers(shape[dim], *index))


def scatter(draw: Draw, target: str) -> Example:
    """A source writes every place once, so that the order of writing does not matter."""
    shape = draw.shape(1, 4)
    dim = draw.dim(shape)
    index = [draw.of(size, size, 1) for size in shape]
    x = draw.floats(*shape)
    if target == "aten.scatter.src":
        index[dim] = draw.of(shape[dim], 1)
        places = torch.rand(*index[: dim % len(shape)], shape[dim], *index[dim % len(shape) + 1 :])
        places = places.argsort(dim).narrow(dim, 0, index[dim])
        return draw.call(target, x, dim, places, draw.floats(*index))
    index[dim] = draw.size()
    given = 2.5 if target == "aten.scatter.value" else draw.floats(*index)
    return draw.call(target, x, dim, draw.integers(shape[dim], *index), given)


def index_select(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    dim = draw.dim(shape)
    return draw.call(target, draw.floats(*shape), dim, draw.integers(shape[dim], draw.size()))


def write_slices(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    dim = draw.dim(shape) % len(shape)
    count = draw.of(*range(1, shape[dim] + 1))
    index = torch.randperm(shape[dim])[:count]
    source = draw.floats(*shape[:dim], count, *shape[dim + 1 :])
    return draw.call(target, draw.floats(*shape), dim, index, source)


def _lists(draw: Draw, shape: tuple[int, ...]) -> list[torch.Tensor | None]:
    """Numbers for one dim or two, next to each other or not, that are broadcast to one shape."""
    first = draw.dim(shape) % len(shape)
    second = draw.of(*range(first, len(shape)))
    common = draw.shape(1, 2)
    lists: list[torch.Tensor | None] = [None] * (second + 1)
    for dim in {first, second}:
        lists[dim] = draw.integers(shape[dim], *draw.of(common, draw.broadcast(common)))
    return lists


def index(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    if draw.of(False, False, False, True):
        rows = draw.dim(shape) % len(shape)
        return draw.call(target, draw.floats(*shape), [None] * rows + [draw.bools(shape[rows])])
    return draw.call(target, draw.floats(*shape), _lists(draw, shape))


def index_put(draw: Draw, target: str) -> Example:
    """Without adding, one value is written, so that the order of writing does not matter."""
    shape = draw.shape(1, 4)
    x = draw.floats(*shape)
    if draw.of(False, False, True):
        first = draw.dim(shape) % len(shape)
        mask = draw.bools(*shape[first : draw.of(*range(first + 1, len(shape) + 1))])
        return draw.call(target, x, [None] * first + [mask], draw.floats(*draw.of((), (1,))))
    lists = _lists(draw, shape)
    if draw.of(True, False):
        return draw.call(target, x, lists, draw.floats())
    read = torch.ops.aten.index(x, lists).shape
    return draw.call(target, x, lists, draw.floats(*draw.broadcast(tuple(read))), True)


def recurrent(draw: Draw, target: str) -> Example:
    """Two layers; samples or steps come first."""
    first, samples, steps, width = draw.of(True, False), draw.size(), 2, 2
    gates = {"lstm": 4, "gru": 3}.get(target.split(".")[1], 1)
    shape = (samples, steps, 3) if first else (steps, samples, 3)
    states = [draw.floats(2, samples, width) for _ in range(2 if gates == 4 else 1)]
    biases = draw.of(True, False)
    weights = []
    for inner in (3, width):
        weights += [draw.floats(gates * width, inner), draw.floats(gates * width, width)]
        weights += [draw.floats(gates * width) for _ in range(2 * biases)]
    given = states if gates == 4 else states[0]
    return draw.call(
        target, draw.floats(*shape), given, weights, biases, 2, 0.0, True, False, first
    )


def _all(make, names: str):
    return {f"aten.{name}": make for name in names.split()}


CALLS = {
    "aten.embedding.default": embedding,
    "autoplan.bags.default": bags,
    "aten.one_hot.default": one_hot,
    "aten.gather.default": gather,
    "aten.index.Tensor": index,
    "aten.index_put.default": index_put,
    "aten.index_select.default": index_select,
    **_all(write_slices, "index_add.default index_copy.default"),
    **_all(scatter, "scatter.value scatter.src scatter_add.default"),
    **_all(recurrent, "lstm.input gru.input rnn_tanh.input rnn_relu.input"),
}
