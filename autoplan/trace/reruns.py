"""Which call of its modules a node belongs to, where a module is called several times.

The export numbers calls by the modules that it enters, which leaves out those of a block that was
traced once and copied. Here calls are told apart by all modules around them, and numbered in the
order of the graph, whether blocks were copied or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from torch import fx

from autoplan.trace.drafts import Draft
from autoplan.trace.graph import Calls
from autoplan.trace.placeholders import own_path


def calls_around(node: fx.Node) -> Calls:
    """The calls of modules that a node is in, outermost first, with the numbers of the export."""
    stack = node.meta.get("nn_module_stack") or {}
    calls = (
        (own_path(path.partition("@")[0]), int(key.rpartition("@")[2]) if "@" in key else 0)
        for key, (path, _) in stack.items()
    )
    return tuple(call for call in calls if call[0])


def moved_calls(origin: Calls, first: str, here: str, around: Calls) -> Calls:
    """The calls that a node of block ``first`` is in, in the block's copy ``here``.

    Args:
        origin: those that it is in itself.
        around: the copy's, of which the last is the call of ``here``.
    """
    entered = max((at for at, (path, _) in enumerate(origin) if path == first), default=-1)
    inner = origin[entered + 1 :]
    return around + tuple(
        (here + path[len(first) :] if path.startswith(f"{first}.") else path, number)
        for path, number in inner
    )


def number_calls(drafts: Iterable[Draft]) -> None:
    """Says of every draft which of its modules had been called before, and how often."""
    counted: Counter[str] = Counter()
    numbers: dict[Calls, int] = {}
    known: dict[Calls, Calls] = {}
    for draft in drafts:
        around = draft.around
        if around not in known:
            for depth, (path, _) in enumerate(around, 1):
                if around[:depth] not in numbers:
                    numbers[around[:depth]] = counted[path]
                    counted[path] += 1
            known[around] = tuple(
                (path, numbers[around[:depth]])
                for depth, (path, _) in enumerate(around, 1)
                if numbers[around[:depth]]
            )
        draft.reruns = known[around]
