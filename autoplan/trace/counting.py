"""Forwards that count their calls in attributes of their modules, found while they are traced.

State is what modules hold beside their parts: plain numbers and flags, and the lengths of
containers. A call that leaves all of it as it was leaves the next one to do the same. Where a call
changed something, another one tells a count from a cache, which it leaves alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any

import torch
from torch import nn

from autoplan.trace.refusals import RefusalError, Refuse, refuse_at_once

Attribute = tuple[nn.Module, str]
State = dict[Attribute, object]

_OWN = frozenset(vars(nn.Module()))
_PLAIN, _CONTAINERS = (int, float, bool, type(None)), (list, dict, set)


@contextmanager
def changed_state(program: nn.Module) -> Iterator[State]:
    """Collects the attributes that the traced forward changes, with what they are behind it.

    They are read within the trace, after which export gives modules their attributes back.
    """
    changed: State = {}
    forward = program.forward
    modules = list(program.modules())

    @wraps(forward)
    def watched(*args: Any, **kwargs: Any) -> Any:
        before = _state(modules)
        result = forward(*args, **kwargs)
        after = _state(modules)
        changed.update((held, v) for held, v in after.items() if before.get(held) != v)
        return result

    program.forward = watched
    try:
        yield changed
    finally:
        program.forward = forward


def refuse_counting(
    changed: State, call: Callable[[], object], refuse: Refuse = refuse_at_once
) -> None:
    """Refuses a forward that counts its calls in an attribute: every step would be another graph.

    Args:
        changed: what a first call changed, and to what.
        call: runs the forward; a forward that fails outside of tracing is not known to count.
    """
    if not changed:
        return
    before: State = {}
    after: State = {}
    with suppress(Exception), torch.no_grad():
        if any(isinstance(getattr(module, name), _CONTAINERS) for module, name in changed):
            call()
        else:
            for (module, name), value in changed.items():
                setattr(module, name, value)
        before = _counts(changed)
        call()
        after = _counts(changed)
    for (module, name), value in after.items():
        if before[module, name] != value:
            what = f"the forward of {type(module).__name__} changes its attribute {name!r} at every"
            what = f"{what} call, so every step is another graph"
            refuse(RefusalError(what, "", "give the number as an input tensor", "state"))


def _state(modules: Sequence[nn.Module]) -> State:
    return {
        (module, name): _count(value)
        for module in modules
        for name, value in vars(module).items()
        if name not in _OWN and (type(value) in _PLAIN or isinstance(value, _CONTAINERS))
    }


def _counts(attributes: State) -> State:
    return {(module, name): _count(getattr(module, name)) for module, name in attributes}


def _count(value: Any) -> object:
    return len(value) if isinstance(value, _CONTAINERS) else value
