"""Examples of convolutions, pooling, resizing and norms over channels."""

from __future__ import annotations

import re

from tests.rules.draw import Draw
from tests.rules.oracle import Example


def group_norm(draw: Draw, target: str) -> Example:
    groups = draw.of(1, 2, draw.ranks, 2 * draw.ranks)
    shape = (draw.size(), 2 * draw.ranks, *draw.shape(1, 2), 2)
    weight = draw.of((), (draw.floats(shape[1]), draw.floats(shape[1])))
    return draw.call(target, draw.floats(*shape), groups, *weight)


def instance_norm(draw: Draw, target: str) -> Example:
    shape = (draw.size(), draw.size(), *draw.shape(1, 2), 3)
    weight = draw.of((None, None), (draw.floats(shape[1]), draw.floats(shape[1])))
    return draw.call(target, draw.floats(*shape), *weight, None, None, True, 0.1, 1e-5, False)


def weight_norm(draw: Draw, target: str) -> Example:
    """Of directions that are not zero, where the norm has no gradient.

    PyTorch's kernel divides by the size of the dim that is kept.
    """
    shape = tuple(max(size, 1) for size in draw.shape(2, 3))
    at = draw.of(0, len(shape) - 1)
    lengths = [size if dim == at else 1 for dim, size in enumerate(shape)]
    return draw.call(target, draw.positive(*shape), draw.floats(*lengths), at)


def _channels(draw: Draw) -> tuple[int, int, int]:
    """Groups, input and output channels of each; one input channel where they are depthwise."""
    groups = draw.of(1, 1, 2, draw.ranks)
    return groups, draw.of(1, draw.size()), draw.of(1, draw.size())


def convolution(draw: Draw, target: str) -> Example:
    places = int(target[len("aten.conv")])
    groups, c, n = _channels(draw)
    x = draw.floats(draw.size(), groups * c, *[draw.of(4, 5)] * places)
    weight = draw.floats(groups * n, c, *[draw.of(1, 3)] * places)
    bias = draw.of(None, draw.floats(groups * n))
    each = [1] * places
    if target.endswith("padding"):
        return draw.call(target, x, weight, bias, each, draw.of("same", "valid"), each, groups)
    stride, padding = [draw.of(1, 2)] * places, [draw.of(0, 1)] * places
    return draw.call(target, x, weight, bias, stride, padding, each, groups)


def transposed(draw: Draw, target: str) -> Example:
    places = int(target[len("aten.conv_transpose")])
    groups, c, n = _channels(draw)
    x = draw.floats(draw.size(), groups * c, *[draw.of(2, 3)] * places)
    weight = draw.floats(groups * c, n, *[draw.of(1, 3)] * places)
    bias = draw.of(None, draw.floats(groups * n))
    each = [2] * places
    return draw.call(target, x, weight, bias, each, [0] * places, [1] * places, groups)


def _image(draw: Draw, target: str, places: int):
    lead = draw.of((draw.size(), draw.size()), (draw.size(),))
    if "upsample" in target:
        lead = (draw.size(), draw.size())
    return draw.floats(*lead, *(4, 6, 5)[:places])


def _places(target: str) -> int:
    return int(re.findall(r"(\d)d", target)[0])


def pool(draw: Draw, target: str) -> Example:
    places = _places(target)
    return draw.call(target, _image(draw, target, places), [draw.of(2, 3)] * places)


def resize(draw: Draw, target: str) -> Example:
    places = _places(target)
    corners = [] if "nearest" in target else [draw.of(True, False)]
    image = _image(draw, target, places)
    by_size = draw.call(target, image, [3] * places, *corners, None)
    return draw.of(by_size, draw.call(target, image, None, *corners, [2.0] * places))


def affine_grid(draw: Draw, target: str) -> Example:
    samples, places = draw.size(), draw.of((3, 2), (2, 3, 2))
    theta = draw.floats(samples, len(places), len(places) + 1)
    return draw.call(target, theta, [samples, 3, *places], draw.of(True, False))


def sampled(draw: Draw, target: str) -> Example:
    """Places inside of the image and beyond its borders."""
    samples, places, made = draw.size(), draw.of((4, 3), (2, 3, 2)), draw.of((2, 3), (4, 1))
    made = (*made, 2)[: len(places)]
    grid = draw.floats(samples, *made, len(places))
    mode, padding = draw.of(0, 1), draw.of(0, 1, 2)
    image = draw.floats(samples, draw.size(), *places)
    return draw.call(target, image, grid, mode, padding, draw.of(True, False))


def _all(make, names: str):
    return {f"aten.{name}": make for name in names.split()}


CALLS = {
    "aten._weight_norm.default": weight_norm,
    "aten.group_norm.default": group_norm,
    "aten.instance_norm.default": instance_norm,
    **_all(convolution, "conv1d.default conv2d.default conv3d.default"),
    **_all(convolution, "conv1d.padding conv2d.padding conv3d.padding"),
    **_all(transposed, "conv_transpose1d.default conv_transpose2d.input conv_transpose3d.input"),
    "aten.affine_grid_generator.default": affine_grid,
    "aten.grid_sampler.default": sampled,
    **_all(
        pool,
        """avg_pool1d.default avg_pool2d.default avg_pool3d.default max_pool1d.default
        max_pool2d.default max_pool3d.default adaptive_avg_pool1d.default
        max_pool2d_with_indices.default adaptive_avg_pool2d.default adaptive_avg_pool3d.default
        adaptive_max_pool1d.default adaptive_max_pool2d.default adaptive_max_pool3d.default""",
    ),
    **_all(
        resize,
        """upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest3d.vec
        _upsample_nearest_exact1d.vec _upsample_nearest_exact2d.vec _upsample_nearest_exact3d.vec
        upsample_linear1d.vec upsample_bilinear2d.vec upsample_bicubic2d.vec
        _upsample_bilinear2d_aa.vec _upsample_bicubic2d_aa.vec upsample_trilinear3d.vec""",
    ),
}
