"""Prints a program as Python that a person can read.

One class per kind of block and one for the model. Parameters are read where the model keeps them;
``local`` takes this rank's piece of a DTensor. Every change of placement is a call of a collective,
named by what it does forward and backward, and results that are not whole on every rank say so
behind the line. What ``del`` lets go of is memory that autograd does not keep. ``again(f, ...)`` is
``f(...)``, whose result is made again in the backward instead of kept.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from autoplan.codegen.header import printable
from autoplan.codegen.program import (
    DRAWS,
    EVALUATE,
    Axis,
    BlockCall,
    BlockClass,
    Call,
    Constant,
    Convert,
    DrawNumber,
    Expression,
    Function,
    Held,
    Operand,
    Program,
    Statement,
    Value,
    operands,
    results,
    runs_again,
)
from autoplan.codegen.runs import Step, steps
from autoplan.errors import UnsupportedModelError
from autoplan.sharding.placement import Replicate
from autoplan.trace.graph import BatchInt, TorchValue

_INDENT = "    "
_WIDTH = 100 - 2 * len(_INDENT)
_MODULES = {  # of stand-ins that are not in runtime.ops
    "invariant_dropout": "autoplan.runtime.dropout",
    "synced_batch_norm": "autoplan.runtime.batch_norm",
}
_COUNTED = "."  # no module can have this name
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def source_of(program: Program, header: str) -> str:
    """The text of a module; ``tp`` and ``dp`` are to be bound in its namespace."""
    method = EVALUATE if program.evaluates else "forward"
    classes = [_block_class(block, method) for block in program.blocks]
    classes += [_stage_class(program, index) for index in range(len(program.stages))]
    parts = [
        '"""' + header + '"""',
        "\n".join(_imports(program)),
        *("\n".join(c) for c in classes),
    ]
    return "\n\n\n".join(parts).replace('"""\n\n\n', '"""\n\n', 1) + "\n"


def _imports(program: Program) -> Iterator[str]:
    statements = [s for function in program.functions for s in function.statements]
    yield "from typing import Any"
    yield ""
    yield "import torch"
    if any(isinstance(s, BlockCall) and s.recomputed for s in statements):
        yield "from torch.utils.checkpoint import checkpoint"
    used = {s.function for s in statements if isinstance(s, Convert)}
    used |= {"arrived"} if any(stage.counts for stage in program.stages) else set()
    yield ""
    yield "from autoplan.codegen.container import Container"
    yield from _import_names("autoplan.runtime.collectives", ["AxisGroup", *sorted(used)])
    local_ops = {s.local_op for s in statements if isinstance(s, Call) and s.local_op}
    apart = {name for name in local_ops if name in _MODULES}
    for name in sorted(apart):
        yield from _import_names(_MODULES[name], [name])
    yield from _import_names("autoplan.runtime.ops", ["local", *sorted(local_ops - apart)])
    if any(map(runs_again, statements)):
        yield "from autoplan.runtime.recompute import recomputing"
    yield ""
    yield "aten: Any  # torch.ops.aten, bound when this module is built"
    yield "tp: AxisGroup  # likewise"
    if any(_names_dp(statement) for statement in statements):
        yield "dp: AxisGroup  # likewise"


def _names_dp(statement: Statement) -> bool:
    return isinstance(statement, Call) and any(value == Axis("dp") for _, value in statement.kwargs)


def _import_names(module: str, names: Sequence[str]) -> Iterator[str]:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= 100:
        yield line
        return
    yield f"from {module} import ("
    yield from (f"{_INDENT}{name}," for name in names)
    yield ")"


def _block_class(block: BlockClass, method: str) -> Iterator[str]:
    yield f"class {block.name}(Container):"
    yield f'{_INDENT}"""{_paths(block.paths)}"""'
    yield ""
    yield from _function(method, block.function, is_block=True)


def _stage_class(program: Program, index: int) -> Iterator[str]:
    stage = program.stages[index]
    yield f"class {stage.name}(Container):"
    yield from (_INDENT + line if line else "" for line in _stage_words(program, index))
    yield ""
    if program.evaluates:
        yield from _function(EVALUATE, stage.forward)
        return
    yield from _function("count", stage.count)
    yield ""
    yield from _function("forward", stage.forward, counts=stage.counts)


def _stage_words(program: Program, index: int) -> Iterator[str]:
    """The docstring of a stage, or of the whole model."""
    count = len(program.stages)
    if program.evaluates:
        result = "the model's outputs for the samples given"
    else:
        result = "the term of the loss of one rank and microbatch"
    if count == 1:
        yield f'"""The model; returns {result}."""'
        return
    blocks = program.stages[index].blocks
    held = f": {_paths(blocks)}" if blocks else ""
    yield f'"""Stage {index} of {count}{held}.'
    yield ""
    yield f"Returns {result if index == count - 1 else f'what stage {index + 1} receives'}."
    yield '"""'


def _paths(paths: Sequence[str]) -> str:
    shown = [printable(path) for path in paths]
    return shown[0] if len(shown) == 1 else f"{shown[0]} to {shown[-1]}, {len(shown)} in all"


def _function(
    name: str,
    function: Function,
    *,
    is_block: bool = False,
    counts: Sequence[Value] | None = None,
) -> Iterator[str]:
    arguments = [value for value in function.inputs if value not in (counts or ())]
    recomputes = any(map(runs_again, function.statements))
    names = ["self", *["again"] * recomputes, *(value.name for value in arguments)]
    names += ["counts"] if counts is not None else []
    if recomputes:
        yield f"{_INDENT}@recomputing"
    yield f"{_INDENT}def {name}({', '.join(names)}):"
    body = list(_body(function, arguments, counts or ()))
    returned = [_operand(value) for value in function.outputs]
    single = len(returned) == 1 and (is_block or name != "count")
    body.append(f"return {returned[0]}" if single else f"return {_tuple(returned)}")
    yield from (_INDENT * 2 + line for line in body)


def _body(function: Function, arguments: Sequence[Value], counts: Sequence[Value]) -> Iterator[str]:
    """The statements; counts, whose sums are under way, are taken where they are first read."""
    if any(map(_needs_device, function.statements)):
        held = (value for s in function.statements for value in operands(s))
        first = next(v for v in (*arguments, *held) if v != DRAWS and v not in counts)
        yield f"device = {_operand(first)}.device"
    awaited = bool(counts)
    for step in steps(function):
        if awaited and set(counts) & set(operands(step.statement)):
            yield f"{_targets([value.name for value in counts])} = arrived(counts)"
            awaited = False
        if step.count == 1:
            yield from _lines(step.statement)
        else:
            yield from _loop(step)
        if step.frees:
            yield f"del {', '.join(step.frees)}"


def _loop(step: Step) -> Iterator[str]:
    """The calls of a run of blocks, whose number is ``index``."""
    call = step.statement
    assert isinstance(call, BlockCall)
    first = int(call.path[step.at])
    path = (*call.path[: step.at], _COUNTED, *call.path[step.at + 1 :])
    yield f"for index in range({first}, {first + step.count}):"
    yield from (_INDENT + line for line in _lines(replace(call, path=path)))


def _needs_device(statement: Statement) -> bool:
    if isinstance(statement, Constant):
        return True
    if not isinstance(statement, Call):
        return False
    values = (*statement.args, *(value for _, value in statement.kwargs))
    return any(isinstance(value, TorchValue) and value.kind == "device" for value in values)


def _lines(statement: Statement) -> Iterator[str]:
    """One assignment, with its arguments on lines of their own where it is too long."""
    outputs = results(statement)
    is_list = isinstance(statement, Call) and statement.is_list
    names = [value.name for value in outputs]
    left = _targets(names) if is_list or len(names) > 1 else names[0]
    function, arguments = _right(statement)
    if runs_again(statement):
        function, arguments = "again", [function, *arguments]
    comment = _placements(outputs)
    comment = f"  # {comment}" if comment else ""
    line = f"{left} = {function}({', '.join(arguments)}){comment}"
    if len(line) <= _WIDTH:
        yield line
        return
    yield f"{left} = {function}({comment}"
    inner = ", ".join(arguments)
    if len(inner) <= _WIDTH - len(_INDENT):
        yield f"{_INDENT}{inner}"
    else:
        yield from (f"{_INDENT}{argument}," for argument in arguments)
    yield ")"


def _placements(outputs: Sequence[Value]) -> str:
    shown = list(dict.fromkeys(repr(value.placement) for value in outputs))
    return "" if shown == [repr(Replicate())] else ", ".join(shown)


def _right(statement: Statement) -> tuple[str, list[str]]:
    """The function that a statement calls, and its arguments."""
    if isinstance(statement, Call):
        return _call(statement)
    if isinstance(statement, Convert):
        arguments = [_operand(statement.source), *map(str, statement.args), "tp"]
        arguments += [f"{key}={value}" for key, value in statement.kwargs]
        return statement.function, arguments
    if isinstance(statement, Constant):
        dtype = f"dtype=torch.{_word(statement.output.dtype)}"
        return "torch.tensor", [_expression(statement.values), dtype, "device=device"]
    arguments = [_operand(value) for value in statement.args]
    block = attribute(statement.path) + f".{statement.method}" * bool(statement.method)
    if not statement.recomputed:
        return block, arguments
    options = ["use_reentrant=False", f"preserve_rng_state={statement.is_random}"]
    return "checkpoint", [block, *arguments, *options]


def _call(statement: Call) -> tuple[str, list[str]]:
    arguments = [_expression(value) for value in statement.args]
    arguments += [f"{_word(key)}={_expression(value)}" for key, value in statement.kwargs]
    if statement.local_op is not None:
        return _word(statement.local_op), [*arguments, "axis=tp"]
    words = [_word(part) for part in statement.target.split(".")]
    prefix = [] if words[0] == "aten" else ["torch", "ops"]
    return ".".join(prefix + words), arguments


def _expression(value: Expression) -> str:
    if isinstance(value, (Value, Held)):
        return _operand(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_expression, value))}]"
    if isinstance(value, Axis):
        return value.name
    if isinstance(value, DrawNumber):
        return f"self.draws_before + {value.after}"
    if isinstance(value, TorchValue):
        return "device" if value.kind == "device" else f"torch.{_word(value.name)}"
    return _literal(value)


def _literal(value: Expression) -> str:
    assert not isinstance(value, BatchInt), "sizes are resolved before printing"
    if value is None or type(value) in (bool, int, str):
        return repr(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    raise UnsupportedModelError(
        f"an argument of type {type(value).__name__} cannot be written down; use a plain number"
    )


def _operand(value: Operand) -> str:
    return value.name if isinstance(value, Value) else f"local({attribute(value.path)})"


def attribute(path: Sequence[str]) -> str:
    """``self.h[0].attn`` of a module path; names that Python cannot write are quoted."""
    text = "self"
    for part in path:
        if part == _COUNTED:
            text += "[index]"
        elif re.fullmatch(r"0|[1-9][0-9]*", part):
            text += f"[{part}]"
        elif _NAME.fullmatch(part) and not part.startswith("__") and not keyword.iskeyword(part):
            text += f".{part}"
        else:
            text = f"getattr({text}, {part!r})"
    return text


def _targets(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) > 1 else f"{names[0]},"


def _tuple(items: Sequence[str]) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def _word(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise UnsupportedModelError(f"{text!r} is not a name that can be written in Python code")
    return text
