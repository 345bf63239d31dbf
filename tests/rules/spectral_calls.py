"""Examples of operators on complex numbers, and of Fourier transforms."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.rules.draw import Draw
from tests.rules.oracle import Example


def _numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.complex128, requires_grad=True)


def unary(draw: Draw, target: str) -> Example:
    return draw.call(target, _numbers(*draw.shape()))


def binary(draw: Draw, target: str) -> Example:
    shape = draw.shape()
    return draw.call(target, draw.positive(*shape), draw.floats(*shape))


def from_parts(draw: Draw, target: str) -> Example:
    return draw.call(target, draw.floats(*draw.shape(most=3), 2))


def transform(draw: Draw, target: str) -> Example:
    """Of all dims, of some, or of some at another size; back to real numbers at a stated one."""
    shape = draw.shape(2, 4)
    name = target.split(".")[1]
    dims = draw.order(len(shape))[: 2 if name.endswith("2") else draw.of(1, 2)]
    x = draw.floats(*shape) if "rfft" in name and "irfft" not in name else _numbers(*shape)
    stated = "irfft" in name or draw.of(True, False)
    if not name.endswith(("2", "n")):
        return draw.call(target, x, 6 if stated else None, dims[0])
    if name.endswith("n") and draw.of(True, False):
        return draw.call(target, x, *([6, 4],) if stated else ())
    return draw.call(target, x, [6] * len(dims) if stated else None, dims)


CALLS = {
    **{
        f"aten.{name}.default": unary
        for name in (
            "conj", "conj_physical", "imag", "real", "resolve_conj", "resolve_neg", "view_as_real"
        )
    },
    "aten.complex.default": binary,
    "aten.polar.default": binary,
    "aten.view_as_complex.default": from_parts,
    **{
        f"aten.fft_{name}{dims}.default": transform
        for name in ("fft", "ifft", "rfft", "irfft")
        for dims in ("", "2", "n")
    },
}  # fmt: skip
