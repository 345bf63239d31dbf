"""Checks a program before it runs: every operator gives the local shapes that were worked out.

Operators run on ``meta`` tensors of their operands' local shapes, once per function. A size that
did not follow the shards, or a rule that splits what cannot be split, shows here and not as a wrong
answer. All ranks run the same text, so they issue the same collectives in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from autoplan.codegen.operators import operator
from autoplan.codegen.program import Call, Expression, Function, Held, Program, Value
from autoplan.errors import UnsupportedModelError, first_line
from autoplan.trace.graph import TorchValue


def verify(program: Program) -> None:
    """Checks all functions.

    Raises:
        UnsupportedModelError: naming the operator whose result has another shape on shards.
    """
    for function in program.functions:
        for call in _operators(function):
            _check(call)


def _operators(function: Function) -> Iterator[Call]:
    """Calls of torch operators; stand-ins need their ranks."""
    for statement in function.statements:
        if isinstance(statement, Call) and statement.local_op is None:
            yield statement


def _check(call: Call) -> None:
    args = [_meta(value) for value in call.args]
    kwargs = {key: _meta(value) for key, value in call.kwargs}
    try:
        with torch.no_grad():
            found = operator(call.target)(*args, **kwargs)
    except NotImplementedError:
        return
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise UnsupportedModelError(
            f"{call.node} does not run on shards of these shapes "
            f"({first_line(error)}); choose its strategy 'replicate'"
        ) from error
    shapes = [tuple(tensor.shape) for tensor in (found if call.is_list else [found])]
    expected = [value.shape for value in call.outputs]
    if shapes != expected:
        raise UnsupportedModelError(
            f"{call.node} gives {shapes} on shards where {expected} are expected; "
            "choose its strategy 'replicate', or run it with dp=1 and one microbatch"
        )


def _meta(value: Expression) -> Any:
    if isinstance(value, (Value, Held)):
        return torch.empty(value.shape, dtype=getattr(torch, value.dtype), device="meta")
    if isinstance(value, tuple):
        return [_meta(item) for item in value]
    if isinstance(value, TorchValue):
        return torch.device("meta") if value.kind == "device" else getattr(torch, value.name)
    return value
