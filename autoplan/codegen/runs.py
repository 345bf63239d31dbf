"""Equal blocks called in a row are printed as one loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autoplan.codegen.program import BlockCall, Function, Path, Statement

_SHORTEST = 3


@dataclass(frozen=True, slots=True)
class Step:
    """One statement; or ``count`` calls of blocks whose paths differ in the number at ``at``.

    ``statement`` is the first of them. ``frees`` are the names to delete behind the last.
    """

    statement: Statement
    frees: tuple[str, ...]
    count: int = 1
    at: int = 0


def steps(function: Function) -> Iterator[Step]:
    """The statements of a function; three or more equal block calls in a row are one step."""
    index = 0
    while index < len(function.statements):
        first = function.statements[index]
        count, at = _run(function, index)
        last = index + count - 1
        yield Step(first, function.frees[last], count, at)
        index += count


def _run(function: Function, start: int) -> tuple[int, int]:
    """How many calls from ``start`` are one run, and which part of their paths counts up."""
    first = function.statements[start]
    if not isinstance(first, BlockCall):
        return 1, 0
    best = 1, 0
    for at, part in enumerate(first.path):
        if not _is_number(part):
            continue
        count = 1
        while _continues(function, start + count, first, (at, int(part) + count)):
            count += 1
        if count >= _SHORTEST:
            best = max(best, (count, at))
    return best


def _continues(function: Function, index: int, first: BlockCall, number: tuple[int, int]) -> bool:
    if index >= len(function.statements) or function.frees[index - 1]:
        return False
    call = function.statements[index]
    return (
        isinstance(call, BlockCall)
        and call.path == _with_number(first.path, *number)
        and (call.args, call.outputs) == (first.args, first.outputs)
        and (call.recomputed, call.is_random) == (first.recomputed, first.is_random)
    )


def _with_number(path: Path, at: int, number: int) -> Path:
    return (*path[:at], str(number), *path[at + 1 :])


def _is_number(part: str) -> bool:
    return part.isascii() and part.isdigit() and str(int(part)) == part
