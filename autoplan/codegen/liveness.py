"""Frees memory as early as a careful programmer would, by names.

A value that autograd keeps lives on whatever the program does, and so does an argument, which the
caller holds, and what is read again in the backward; nothing is written for them. Of what is made
again, autograd keeps nothing. Any other storage is let go after its last use: by giving its name to
what is made of it (a view, the same tensor placed otherwise, the next block's result), or by
``del``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TypeVar

from autoplan.codegen.program import (
    BlockCall,
    Call,
    Convert,
    Expression,
    Function,
    Held,
    Operand,
    Statement,
    Value,
    is_renaming,
    operands,
    results,
    runs_again,
)

_MODULE = "self"
_T = TypeVar("_T", bound=Operand)


def tidy(function: Function, made_by_blocks: Collection[str] = ()) -> Function:
    """The same function with names used again and storages freed.

    Args:
        made_by_blocks: names of the arguments that are results of blocks elsewhere.
    """
    names = _reused_names(function, set(made_by_blocks))
    frees = _frees(function, names)
    return Function(
        inputs=function.inputs,
        statements=tuple(_renamed(statement, names) for statement in function.statements),
        outputs=tuple(_rename(value, names) for value in function.outputs),
        frees=frees,
    )


def _reused_names(function: Function, made_by_blocks: set[str]) -> dict[str, str]:
    """For every value its final name: that of the value it takes the place of, or its own."""
    last = _last_uses(function, {})
    kept = {value.name for value in function.outputs if isinstance(value, Value)}
    names: dict[str, str] = {}
    for index, statement in enumerate(function.statements):
        outputs = results(statement)
        if isinstance(statement, BlockCall):
            made_by_blocks.update(value.name for value in outputs)
        old = _replaced(statement, made_by_blocks)
        if old is not None and last[old.name] == index and old.name not in kept:
            names[outputs[0].name] = names.get(old.name, old.name)
    return names


def _replaced(statement: Statement, made_by_blocks: set[str]) -> Value | None:
    """The operand whose place the one result of a statement can take."""
    if isinstance(statement, Convert):
        old = statement.source
    elif isinstance(statement, BlockCall) and len(statement.outputs) == 1 and statement.args:
        old = statement.args[0]
        if isinstance(old, Value) and old.name not in made_by_blocks:
            return None
    elif isinstance(statement, Call) and len(statement.outputs) == 1:
        old = statement.views[0]
    else:
        return None
    return old if isinstance(old, Value) else None


def _frees(function: Function, names: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """Names to delete behind every statement."""
    storage = _storages(function)
    kept = {storage[value.name] for value in function.inputs}
    kept |= {storage[value.name] for value in function.outputs if isinstance(value, Value)}
    kept |= {_MODULE, *_kept_for_backward(function, storage)}
    last = _last_uses(function, storage)
    bound: dict[str, str] = {}
    frees: list[tuple[str, ...]] = []
    for index, statement in enumerate(function.statements):
        for value in results(statement):
            bound[names.get(value.name, value.name)] = storage[value.name]
        dead = tuple(name for name, s in bound.items() if s not in kept and last[s] <= index)
        for name in dead:
            del bound[name]
        frees.append(dead if index < len(function.statements) - 1 else ())
    return tuple(frees)


def _kept_for_backward(function: Function, storage: Mapping[str, str]) -> set[str]:
    """Storages that autograd or what runs again keeps; none of what is made again."""
    kept: set[str] = set()
    made: set[str] = set()
    for statement in function.statements:
        if isinstance(statement, Call):
            kept |= {storage[name] for name in statement.keeps}
        if runs_again(statement):
            kept |= {storage[v.name] for v in operands(statement) if isinstance(v, Value)}
            made |= {storage[value.name] for value in results(statement)}
    return kept - made


def _last_uses(function: Function, storage: Mapping[str, str]) -> dict[str, int]:
    """Index of the last statement that reads or makes a value (or a value of its storage)."""
    found: dict[str, int] = {}
    for index, statement in enumerate(function.statements):
        for value in (*operands(statement), *results(statement)):
            if isinstance(value, Value):
                found[storage.get(value.name, value.name)] = index
    return found


def _storages(function: Function) -> dict[str, str]:
    """For every value the first value of its storage; ``_MODULE`` for views of parameters."""
    found = {value.name: value.name for value in function.inputs}
    for statement in function.statements:
        for value, base in zip(results(statement), _bases(statement), strict=True):
            if isinstance(base, Held):
                found[value.name] = _MODULE
            else:
                found[value.name] = value.name if base is None else found[base.name]
    return found


def _bases(statement: Statement) -> tuple[Operand | None, ...]:
    """For every result the operand whose storage it shares."""
    if isinstance(statement, Call):
        return statement.views
    if isinstance(statement, Convert) and is_renaming(statement):
        return (statement.source,)
    return (None,) * len(results(statement))


def _renamed(statement: Statement, names: Mapping[str, str]) -> Statement:
    if isinstance(statement, Call):
        return replace(
            statement,
            args=tuple(_rename_all(value, names) for value in statement.args),
            kwargs=tuple((key, _rename_all(value, names)) for key, value in statement.kwargs),
            outputs=tuple(_rename(value, names) for value in statement.outputs),
        )
    if isinstance(statement, Convert):
        source, output = _rename(statement.source, names), _rename(statement.output, names)
        return replace(statement, source=source, output=output)
    if isinstance(statement, BlockCall):
        return replace(
            statement,
            args=tuple(_rename(value, names) for value in statement.args),
            outputs=tuple(_rename(value, names) for value in statement.outputs),
        )
    return statement


def _rename_all(value: Expression, names: Mapping[str, str]) -> Expression:
    if isinstance(value, tuple):
        return tuple(_rename_all(item, names) for item in value)
    return _rename(value, names) if isinstance(value, (Value, Held)) else value


def _rename(value: _T, names: Mapping[str, str]) -> _T:
    if isinstance(value, Held) or value.name not in names:
        return value
    return replace(value, name=names[value.name])
