"""Counts the operators that emitted code calls; ``aten`` stands for ``torch.ops.aten`` there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from autoplan.codegen.emitted import Emitted

_calls: list[Counter[str]] = []


def counted(emitted: Emitted) -> Emitted:
    """The same program, whose operators are counted while ``operators`` is open."""
    declared, ours = "\naten: Any ", f"\nfrom {__name__} import aten "
    assert declared in emitted.source
    return replace(emitted, source=emitted.source.replace(declared, ours))


@contextmanager
def operators() -> Iterator[Counter[str]]:
    """Calls by the name of the overload, ``aten.linear.default``."""
    found: Counter[str] = Counter()
    _calls.append(found)
    try:
        yield found
    finally:
        _calls.pop()


class _Counted:
    def __init__(self, path: str, target: Any) -> None:
        self._path, self._target = path, target

    def __getattr__(self, name: str) -> Any:
        return _Counted(f"{self._path}.{name}", getattr(self._target, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for found in _calls:
            found[self._path] += 1
        return self._target(*args, **kwargs)


aten = _Counted("aten", torch.ops.aten)
