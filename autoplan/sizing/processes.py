"""Work on many items in several processes of this machine, each a copy of this one.

Planning is Python from end to end, so that threads would wait for each other. What the work needs
is inherited, not sent; results come back through pipes.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from typing import Any, TypeVar

from autoplan.errors import AutoplanError, PlanError

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST = 4
"""Processes at once: each needs the memory of a plan."""


def worked_on(
    work: Callable[[Item], Result], items: Sequence[Item], *, most: int = _MOST
) -> Iterator[tuple[int, Result]]:
    """The number and result of each item, as they are done.

    Args:
        work: what it keeps from item to item stays in its process.
        most: processes; with one, or where processes cannot be copied, all is done in this one.

    Raises:
        AutoplanError: what the work raised first.
        PlanError: a process ended without an answer.
    """
    count = min(most, len(items), len(os.sched_getaffinity(0))) if hasattr(os, "fork") else 1
    if count <= 1:
        yield from ((number, work(item)) for number, item in enumerate(items))
        return
    context = multiprocessing.get_context("fork")
    waiting = iter(range(len(items)))
    pipes: list[Any] = []
    processes = []
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(work, items, theirs), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
            ours.send(next(waiting))
        for _ in items:
            pipe: Any = wait(pipes)[0]
            number, result = _received(pipe)
            following = next(waiting, None)
            if following is None:
                pipes.remove(pipe)
            else:
                pipe.send(following)
            yield number, result
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _received(pipe: Any) -> tuple[int, Any]:
    try:
        number, result = pipe.recv()
    except EOFError:
        raise PlanError(
            "a planning process was ended from outside, as happens when memory runs out: "
            "size fewer clusters at once"
        ) from None
    if isinstance(result, AutoplanError):
        raise result
    return number, result


def _serve(work: Callable[[Any], Any], items: Sequence[Any], pipe: Any) -> None:
    """Works on items whose numbers arrive until none does."""
    while True:
        try:
            number = pipe.recv()
        except EOFError:
            return
        try:
            answer = number, work(items[number])
        except AutoplanError as error:
            answer = number, error
        pipe.send(answer)
