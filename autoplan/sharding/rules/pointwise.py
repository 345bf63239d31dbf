"""Operators that compute every element from the elements at the same place of their operands."""

from __future__ import annotations

from collections.abc import Callable

from autoplan.sharding.equation import Equation
from autoplan.sharding.rules.base import Call, Rule, broadcast, letters, sizes
from autoplan.trace.graph import Ref

_Groups = tuple[frozenset[int], ...]

_FLOATS = ("float64", "float32", "bfloat16", "float16")


def _never(call: Call) -> _Groups:
    return ()


def _first(call: Call) -> _Groups:
    return (frozenset({0}),)


def _cast(call: Call) -> _Groups:
    """Casts keep sums unless they round to integers or to truth values."""
    source, target = call.inputs[0].dtype, call.outputs[0].dtype
    if target == "bool" or source == "bool":
        return ()
    return _first(call) if target in _FLOATS or source not in _FLOATS else ()


def _product(call: Call) -> _Groups:
    return tuple(frozenset({position}) for position in range(len(call.inputs)))


def _quotient(call: Call) -> _Groups:
    return _first(call) if isinstance(call.node.args[0], Ref) else ()


def _sum(call: Call) -> _Groups:
    return (frozenset({0, 1}),) if len(call.inputs) == 2 else ()


def pointwise(linear: Callable[[Call], _Groups] = _never) -> Rule:
    """The rule of an elementwise operator; ``linear`` gives the operands it is linear in."""

    def equation(call: Call) -> Equation:
        result = call.outputs[0].shape
        return Equation(
            inputs=tuple(broadcast(shape, result) for shape in call.shapes),
            outputs=(letters(result),) * len(call.outputs),
            sizes=sizes(result),
            linear=linear(call),
        )

    return equation


def _prelu(call: Call) -> Equation:
    """A slope for each channel, dim 1, or one for all."""
    shape, slopes = call.shapes
    dims = letters(shape)
    return Equation(
        inputs=(dims, (dims[1],) if slopes != (1,) else ((),)),
        outputs=(dims,),
        sizes=sizes(shape),
    )


_NONLINEAR = """
    __and__.Tensor __or__.Tensor abs.default acos.default add.Scalar addcdiv.default
    addcmul.default asin.default asinh.default atan.default atan2.default bitwise_and.Tensor
    bitwise_not.default bitwise_or.Tensor bitwise_xor.Tensor ceil.default celu.default
    clamp.Tensor clamp.default clamp_max.default clamp_min.default copysign.Tensor cos.default
    cosh.default div.Tensor_mode dropout.default elu.default eq.Scalar eq.Tensor erf.default
    erfc.default exp.default exp2.default expm1.default floor.default floor_divide.default
    fmod.Tensor frac.default full_like.default ge.Scalar ge.Tensor gelu.default gt.Scalar
    gt.Tensor hardshrink.default hardsigmoid.default hardswish.default hardtanh.default
    hypot.default isfinite.default isinf.default isnan.default le.Scalar le.Tensor
    leaky_relu.default lerp.Scalar lerp.Tensor log.default log10.default log1p.default
    log2.default log_sigmoid.default logaddexp.default logical_and.default logical_not.default
    logical_or.default logical_xor.default lt.Scalar lt.Tensor masked_fill.Scalar
    masked_fill.Tensor max.other maximum.default min.other minimum.default mish.default
    nan_to_num.default ne.Scalar ne.Tensor ones_like.default pow.Scalar pow.Tensor_Scalar
    pow.Tensor_Tensor reciprocal.default relu.default relu6.default remainder.Scalar
    remainder.Tensor round.default rsqrt.default rsub.Scalar rsub.Tensor selu.default
    sgn.default sigmoid.default sign.default silu.default sin.default sinh.default
    softplus.default softshrink.default sqrt.default square.default sub.Scalar tan.default
    tanh.default threshold.default trunc.default where.ScalarOther where.ScalarSelf where.self
    zeros_like.default
    absolute.default angle.default clip.default deg2rad.default digamma.default erfinv.default
    fix.default float_power.Tensor_Scalar fmax.default fmin.default heaviside.default i0.default
    isclose.default ldexp.Tensor lgamma.default logit.default rad2deg.default rrelu.default
    signbit.default sinc.default xlogy.Tensor
    complex.default conj.default conj_physical.default imag.default polar.default real.default
    resolve_conj.default resolve_neg.default
"""
_LINEAR = (
    "alias.default clone.default contiguous.default detach.default neg.default positive.default"
)
_CASTS = "to.dtype to.dtype_layout to.device _to_copy.default"

RULES = {
    **{f"aten.{name}": pointwise() for name in _NONLINEAR.split()},
    **{f"aten.{name}": pointwise(_first) for name in _LINEAR.split()},
    **{f"aten.{name}": pointwise(_cast) for name in _CASTS.split()},
    "aten.prelu.default": _prelu,
    "aten.add.Tensor": pointwise(_sum),
    "aten.sub.Tensor": pointwise(_sum),
    "aten.mul.Tensor": pointwise(_product),
    "aten.mul.Scalar": pointwise(_product),
    "aten.div.Tensor": pointwise(_quotient),
    "aten.div.Scalar": pointwise(_quotient),
}
