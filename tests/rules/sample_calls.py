"""Examples of operators of which samples are the only loops, and of small products."""

from __future__ import annotations

from tests.rules.draw import Draw
from tests.rules.oracle import Example


def shuffled(draw: Draw, target: str) -> Example:
    return draw.call(target, draw.floats(draw.size(), 8, 4, 2), 2)


def unfolded(draw: Draw, target: str) -> Example:
    x = draw.floats(draw.size(), 3, 4, 4)
    return draw.call(target, x, [2, 2], [1, 1], [0, 0], [draw.of(1, 2)] * 2)


def folded(draw: Draw, target: str) -> Example:
    x = draw.floats(draw.size(), 12, 4)
    return draw.call(target, x, [4, 4], [2, 2], [1, 1], [0, 0], [2, 2])


def cell(draw: Draw, target: str) -> Example:
    """Weights of the input and of the state, and their biases, each of all gates."""
    samples, width, state = draw.size(), 3, 2
    gates = {"gru": 3, "lstm": 4}.get(target.removeprefix("aten.").partition("_")[0], 1)
    h = draw.floats(samples, state)
    held = [h, draw.floats(samples, state)] if "lstm" in target else h
    weights = draw.floats(gates * state, width), draw.floats(gates * state, state)
    biases = draw.floats(gates * state), draw.floats(gates * state)
    return draw.call(target, draw.floats(samples, width), held, *weights, *biases)


def bilinear(draw: Draw, target: str) -> Example:
    lead, n, i, j = draw.shape(1, 2), draw.size(), draw.size(), draw.size()
    bias = draw.of(None, draw.floats(n))
    first, second = draw.floats(*lead, i), draw.floats(*lead, j)
    return draw.call(target, first, second, draw.floats(n, i, j), bias)


def matrix_vector(draw: Draw, target: str) -> Example:
    m, k = draw.size(), draw.size()
    added = (draw.floats(m),) if "addmv" in target else ()
    return draw.call(target, *added, draw.floats(m, k), draw.floats(k))


def outer(draw: Draw, target: str) -> Example:
    return draw.call(target, draw.floats(draw.size()), draw.floats(draw.size()))


def distances(draw: Draw, target: str) -> Example:
    lead, k = draw.shape(0, 2), draw.size()
    return draw.call(target, draw.floats(*lead, draw.size(), k), draw.floats(*lead, draw.size(), k))


def slopes(draw: Draw, target: str) -> Example:
    shape = draw.shape(2, 4)
    return draw.call(target, draw.floats(*shape), draw.floats(draw.of(1, shape[1])))


def halves(draw: Draw, target: str) -> Example:
    shape = tuple(2 * size for size in draw.shape(1, 4))
    return draw.call(target, draw.floats(*shape), draw.dim(shape))


def two_dims(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    return draw.call(target, draw.floats(*shape), draw.dim(shape), draw.dim(shape))


def _all(make, names: str):
    return {f"aten.{name}": make for name in names.split()}


CALLS = {
    **_all(shuffled, "pixel_shuffle.default pixel_unshuffle.default channel_shuffle.default"),
    "aten.im2col.default": unfolded,
    "aten.col2im.default": folded,
    **_all(cell, "gru_cell.default lstm_cell.default rnn_tanh_cell.default rnn_relu_cell.default"),
    "aten.bilinear.default": bilinear,
    **_all(matrix_vector, "mv.default addmv.default"),
    "aten.outer.default": outer,
    "aten.cdist.default": distances,
    "aten.prelu.default": slopes,
    "aten.glu.default": halves,
    **_all(two_dims, "swapaxes.default movedim.int"),
}
