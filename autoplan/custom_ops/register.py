"""``autoplan.register_rule``: how a user's operator splits, in one line.

The equation is tried before it is kept: the operator runs on the CPU, on tensors that the equation
describes (or on those of an example), whole and split by each of its letters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor

from autoplan.codegen.operators import is_random
from autoplan.codegen.operators import operator as overload_of
from autoplan.codegen.torch_private import schema
from autoplan.custom_ops.kernels import check_kernels
from autoplan.custom_ops.truth import Fault, Sample, fault, meta, sample
from autoplan.errors import UnsupportedModelError, first_line
from autoplan.sharding.rules.base import Call
from autoplan.sharding.rules.registered import WrittenRule, keep, registered
from autoplan.sharding.rules.registry import RULES
from autoplan.trace.samples import draws_at_random

_NAME = re.compile(r"(\w+)::(\w+)(?:\.(\w+))?")
_TEXT = re.compile(r"(?:[\w\s(),]|\.\.\.)*->(?:[\w\s(),]|\.\.\.)*")
_LEAD = 2
"""Dims that stand for ``...`` in the tensors that a rule is tried on."""


def register_rule(
    operator: str, equation: str, *, whole: str = "", example: Sequence[Any] | None = None
) -> None:
    """Tells how an operator of ``torch.library`` splits: ``b s h, h k -> b s k``.

    Each tensor operand and result is written by its dims, a letter for each. A letter is a loop:
    shared by an operand and a result it computes pieces of them, in operands alone it is summed
    over. ``(h d)`` is one dim of ``h`` groups of ``d``; ``...`` any number of leading dims.

    The rule belongs to the process, like the operator: import the module that registers it
    wherever the model is planned or run. Registering the same rule again does nothing.

    Args:
        operator: ``mylib::op``, or ``mylib::op.overload``.
        equation: the dims of the operands, ``->``, those of the results.
        whole: letters that no rank may split, separated by spaces.
        example: arguments to try the operator on, where it takes more than floating-point tensors;
            sizes that are multiples of 4 are tried on 2 and 4 ranks.

    Raises:
        UnsupportedModelError: no such operator, one without a fake kernel or a gradient, or an
            equation that does not hold, with the placement that gives another result.
    """
    target = _target(operator)
    rule = WrittenRule(text=equation, whole=whole)
    if registered(target) != rule:
        check_rule(operator, equation, whole=whole, example=example)
        keep(target, rule)


def check_rule(
    operator: str, equation: str, *, whole: str = "", example: Sequence[Any] | None = None
) -> None:
    """Tries a rule without keeping it; as ``register_rule``.

    Raises:
        UnsupportedModelError: likewise.
    """
    target = _target(operator)
    _check_text(operator, equation, whole)
    rule = WrittenRule(text=equation, whole=whole)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        for args in _trials(operator, target, equation, example):
            truth = _truth(operator, target, args)
            inputs = tuple(map(meta, truth.operands))
            if is_random(truth.node) or draws_at_random(truth.node, inputs, batch=1):
                raise UnsupportedModelError(
                    f"{operator} draws at random, so that no split gives what one device draws; "
                    "draw outside of it, and hand the numbers to it as a tensor"
                )
            found = fault(rule(Call(node=truth.node, inputs=inputs)), truth)
            if found is not None:
                raise UnsupportedModelError(_refusal(operator, rule, found))


def _target(operator: str) -> str:
    match = _NAME.fullmatch(operator)
    if match is None:
        raise UnsupportedModelError(f"{operator!r} names no operator; write 'mylib::op'")
    target = f"{match[1]}.{match[2]}.{match[3] or 'default'}"
    found = overload_of(target)
    if target in RULES:
        raise UnsupportedModelError(f"{operator} has a rule of autoplan's own; leave it out")
    if schema(found).is_mutable:
        raise UnsupportedModelError(
            f"{operator} changes its operands, which no plan allows; return a new tensor"
        )
    return target


def _check_text(operator: str, equation: str, whole: str) -> None:
    known = _letters(equation)
    if not _TEXT.fullmatch(equation) or equation.count("(") != equation.count(")"):
        raise UnsupportedModelError(
            f"{equation!r} for {operator} is no equation; write one such as 'b s h, h k -> b s k'"
        )
    for letter in whole.split():
        if letter not in known:
            raise UnsupportedModelError(
                f"whole={whole!r} for {operator}: {equation!r} has no letter {letter}"
            )


def _trials(
    operator: str, target: str, equation: str, example: Sequence[Any] | None
) -> Iterator[list[Any]]:
    """Arguments on ordinary values, then on values of two magnitudes."""
    args = list(example) if example is not None else _drawn(operator, target, equation)
    for scale in (1.0, 30.0):
        yield [_scaled(value, scale) for value in args]


def _drawn(operator: str, target: str, equation: str) -> list[Tensor]:
    """A tensor for each operand that the equation writes; every letter has another size."""
    needed = [x for x in schema(overload_of(target)).arguments if not x.has_default_value()]
    if any(str(argument.type) not in ("Tensor", "Optional[Tensor]") for argument in needed):
        names = ", ".join(argument.name for argument in needed)
        raise UnsupportedModelError(
            f"{operator} takes {names}: give arguments to try the rule on, as example="
        )
    sizes: dict[str, int] = {}
    fresh = (4 * number for number in count(1))
    terms = _terms(equation.partition("->")[0])
    for letter in dict.fromkeys(letter for dims in terms for dim in dims for letter in dim):
        sizes[letter] = next(fresh)
    shapes = [[math.prod(sizes[letter] for letter in dim) for dim in dims] for dims in terms]
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def _terms(text: str) -> list[list[list[str]]]:
    """The letters of every dim of every tensor, with letters of their own for ``...``."""
    lead = " ".join(f"lead{number}" for number in range(_LEAD))
    terms = re.split(",|->", text.replace("...", lead))
    return [
        [dim.strip("()").split() for dim in re.findall(r"\([^)]*\)|[^\s()]+", term)]
        for term in terms
    ]


def _letters(equation: str) -> set[str]:
    return {letter for dims in _terms(equation) for dim in dims for letter in dim}


def _scaled(value: Any, scale: float) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point() or scale == 1.0:
        return value
    return value * torch.where(torch.rand(value.shape) < 0.5, scale, 1.0).to(value.dtype)


def _truth(operator: str, target: str, args: list[Any]) -> Sample:
    """The operator's own run: in no less than single precision if it can, else as it is given."""
    faults = []
    for given in (
        _cast(args, torch.float32, torch.float16, torch.bfloat16),
        _cast(args, torch.float32, torch.float64),
    ):
        try:
            check_kernels(operator, target, given)
            return sample(target, given)
        except UnsupportedModelError:
            raise
        except Exception as error:
            faults.append(first_line(error))
    shapes = ", ".join(str(tuple(x.shape)) for x in args if isinstance(x, Tensor))
    raise UnsupportedModelError(
        f"{operator} fails on tensors of shapes {shapes}, which its equation describes: "
        f"{faults[-1]}; correct the equation, or give example="
    )


def _cast(args: Sequence[Any], dtype: torch.dtype, *others: torch.dtype) -> list[Any]:
    """The arguments with tensors of some dtypes in another."""
    return [x.to(dtype) if isinstance(x, Tensor) and x.dtype in others else x for x in args]


def _refusal(operator: str, rule: WrittenRule, found: Fault) -> str:
    read = ", ".join(repr(port.placement) for port in found.strategy.inputs)
    made = ", ".join(map(repr, found.strategy.outputs))
    letter = found.strategy.label
    whole = f"{rule.whole} {letter}".strip()
    cure = f"keep it whole with whole={whole!r}"
    if letter not in _letters(rule.text):
        cure = "write letters in the place of ... and keep the one whole that is no loop"
    return (
        f"{rule.text!r} is wrong for {operator}: split by {letter} over {found.ranks} ranks "
        f"({read} -> {made}) it {found.what}; correct the equation, or {cure}"
    )
