"""Examples of elementwise operators."""

from __future__ import annotations

import torch

from tests.rules.draw import Draw
from tests.rules.oracle import Example


def unary(draw: Draw, target: str) -> Example:
    return draw.call(target, draw.floats(*draw.shape()))


def unary_positive(draw: Draw, target: str) -> Example:
    return draw.call(target, draw.positive(*draw.shape()))


def binary(draw: Draw, target: str) -> Example:
    shape = draw.shape()
    first = draw.of(shape, draw.broadcast(shape))
    second = shape if first != shape else draw.broadcast(shape)
    return draw.call(target, draw.floats(*first), draw.positive(*second))


def binary_or_scalar(draw: Draw, target: str) -> Example:
    made = binary(draw, target)
    return draw.of(made, draw.call(target, made.args[0], 1.5))


def binary_bools(draw: Draw, target: str) -> Example:
    shape = draw.shape()
    return draw.call(target, draw.bools(*shape), draw.bools(*draw.broadcast(shape)))


def scalar(draw: Draw, target: str) -> Example:
    return draw.call(target, draw.floats(*draw.shape()), draw.of(0.25, 1, -1.5))


def scalar_on_positive(draw: Draw, target: str) -> Example:
    return draw.call(target, draw.positive(*draw.shape()), draw.of(2, 3, 0.5))


def floor_divide(draw: Draw, target: str) -> Example:
    made = binary(draw, target)
    return draw.call(target, *(value.detach() for value in made.args))


def power_of_scalar(draw: Draw, target: str) -> Example:
    return draw.call(target, 2.0, draw.floats(*draw.shape()))


def power(draw: Draw, target: str) -> Example:
    shape = draw.shape()
    return draw.call(target, draw.positive(*shape), draw.floats(*draw.broadcast(shape)))


def unary_small_positive(draw: Draw, target: str) -> Example:
    return draw.call(target, draw.positive(*draw.shape()) / 2)


def positives(draw: Draw, target: str) -> Example:
    shape = draw.shape()
    return draw.call(target, draw.positive(*shape), draw.positive(*draw.broadcast(shape)))


def unary_bools(draw: Draw, target: str) -> Example:
    return draw.call(target, draw.bools(*draw.shape()))


def unary_small(draw: Draw, target: str) -> Example:
    x = (torch.rand(draw.shape(), dtype=torch.float64) - 0.5).requires_grad_()
    return draw.call(target, x)


def ternary(draw: Draw, target: str) -> Example:
    shape = draw.shape()
    others = [draw.positive(*draw.broadcast(shape)) for _ in range(2)]
    return draw.call(target, draw.floats(*shape), *others)


def lerp(draw: Draw, target: str) -> Example:
    shape = draw.shape()
    return draw.call(target, draw.floats(*shape), draw.floats(*draw.broadcast(shape)), 0.3)


def threshold(draw: Draw, target: str) -> Example:
    return draw.call(target, draw.floats(*draw.shape()), 0.1, -2.0)


def clamp(draw: Draw, target: str) -> Example:
    x = draw.floats(*draw.shape())
    return draw.of(draw.call(target, x, -0.5, 0.5), draw.call(target, x, max=0.2))


def clamp_tensor(draw: Draw, target: str) -> Example:
    shape = draw.shape()
    return draw.call(target, draw.floats(*shape), draw.floats(*draw.broadcast(shape)))


def divide_rounded(draw: Draw, target: str) -> Example:
    made = binary(draw, target)
    return draw.call(target, *made.args, rounding_mode="floor")


def dropout(draw: Draw, target: str) -> Example:
    """Without chance: all kept, or all dropped."""
    x = draw.floats(*draw.shape())
    return draw.of(draw.call(target, x, 0.5, False), draw.call(target, x, 1.0, True))


def masked_fill(draw: Draw, target: str) -> Example:
    shape = draw.shape()
    mask = draw.bools(*draw.broadcast(shape))
    value = -1.5 if target.endswith("Scalar") else draw.floats()
    return draw.call(target, draw.floats(*shape), mask, value)


def where(draw: Draw, target: str) -> Example:
    shape = draw.shape()
    condition, overload = draw.bools(*shape), target.rpartition(".")[2]
    first = 2.0 if overload == "ScalarSelf" else draw.floats(*draw.broadcast(shape))
    second = 3.0 if overload == "ScalarOther" else draw.floats(*draw.broadcast(shape))
    return draw.call(target, condition, first, second)


def full_like(draw: Draw, target: str) -> Example:
    return draw.call(target, draw.floats(*draw.shape()), 1.5)


def cast(draw: Draw, target: str) -> Example:
    x = draw.of(draw.floats, lambda *shape: draw.integers(5, *shape))(*draw.shape())
    dtype = draw.of(torch.float64, torch.float64, torch.int64)
    return {
        "aten.to.dtype": lambda: draw.call(target, x, dtype),
        "aten.to.dtype_layout": lambda: draw.call(target, x, dtype=dtype),
        "aten._to_copy.default": lambda: draw.call(target, x, dtype=dtype),
        "aten.to.device": lambda: draw.call(target, x, "cpu", dtype),
    }[target]()


def _all(make, names: str):
    return {f"aten.{name}": make for name in names.split()}


CALLS = {
    **_all(
        unary,
        """abs.default alias.default ceil.default clone.default contiguous.default cos.default
        detach.default elu.default erf.default exp.default expm1.default floor.default
        gelu.default hardsigmoid.default hardswish.default hardtanh.default
        isinf.default isnan.default leaky_relu.default log_sigmoid.default mish.default
        neg.default ones_like.default relu.default relu6.default round.default
        sigmoid.default sign.default silu.default sin.default softplus.default
        square.default tanh.default zeros_like.default
        atan.default asinh.default celu.default cosh.default erfc.default exp2.default
        frac.default hardshrink.default isfinite.default nan_to_num.default selu.default
        sgn.default sinh.default softshrink.default trunc.default
        absolute.default angle.default deg2rad.default fix.default i0.default positive.default
        rad2deg.default rrelu.default signbit.default sinc.default""",
    ),
    **_all(
        unary_positive,
        """log.default log10.default log1p.default log2.default reciprocal.default rsqrt.default
        sqrt.default tan.default digamma.default lgamma.default""",
    ),
    **_all(unary_small, "acos.default asin.default erfinv.default"),
    **_all(ternary, "addcmul.default addcdiv.default lerp.Tensor"),
    "aten.lerp.Scalar": lerp,
    "aten.threshold.default": threshold,
    **_all(unary_bools, "bitwise_not.default logical_not.default"),
    **_all(binary_or_scalar, "add.Tensor sub.Tensor mul.Tensor div.Tensor"),
    **_all(
        binary,
        """eq.Tensor ge.Tensor gt.Tensor le.Tensor lt.Tensor max.other maximum.default
        min.other minimum.default ne.Tensor rsub.Tensor atan2.default copysign.Tensor fmod.Tensor
        hypot.default logaddexp.default remainder.Tensor fmax.default fmin.default
        ldexp.Tensor isclose.default""",
    ),
    **_all(
        binary_bools,
        """__and__.Tensor __or__.Tensor bitwise_and.Tensor bitwise_or.Tensor logical_and.default
        logical_or.default bitwise_xor.Tensor logical_xor.default""",
    ),
    **_all(
        scalar,
        """add.Scalar clamp_max.default clamp_min.default div.Scalar eq.Scalar ge.Scalar gt.Scalar
        le.Scalar lt.Scalar mul.Scalar ne.Scalar remainder.Scalar rsub.Scalar sub.Scalar""",
    ),
    "aten.clamp.default": clamp,
    "aten.clamp.Tensor": clamp_tensor,
    "aten.div.Tensor_mode": divide_rounded,
    "aten.dropout.default": dropout,
    "aten.floor_divide.default": floor_divide,
    "aten.full_like.default": full_like,
    "aten.clip.default": clamp,
    "aten.float_power.Tensor_Scalar": scalar_on_positive,
    **_all(floor_divide, "heaviside.default"),
    "aten.logit.default": unary_small_positive,
    "aten.xlogy.Tensor": positives,
    "aten.pow.Scalar": power_of_scalar,
    "aten.pow.Tensor_Scalar": scalar_on_positive,
    "aten.pow.Tensor_Tensor": power,
    **_all(masked_fill, "masked_fill.Scalar masked_fill.Tensor"),
    **_all(where, "where.self where.ScalarOther where.ScalarSelf"),
    **_all(cast, "to.dtype to.dtype_layout to.device _to_copy.default"),
}
