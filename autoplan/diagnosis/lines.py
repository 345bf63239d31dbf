"""The text of the user's lines of source."""

from __future__ import annotations

import linecache
from collections.abc import Iterable

from autoplan.findings import Place


def places(wheres: Iterable[str]) -> tuple[Place, ...]:
    """The places ``file:line`` with their text, each once, those that are unknown left out."""
    return tuple(Place(where=where, text=_text(where)) for where in dict.fromkeys(wheres) if where)


def _text(where: str) -> str:
    """Files are looked for from the working directory, then where modules are imported from."""
    path, _, line = where.rpartition(":")
    return linecache.getline(path, int(line)).strip()
