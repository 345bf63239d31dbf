"""Files that commands write: refused before the work where they cannot be, named when written."""

from __future__ import annotations

import sys
from pathlib import Path

from autoplan.errors import PlanError


def check_directory(option: str, path: Path | None) -> None:
    """Refuses a file that cannot be written.

    Raises:
        PlanError: there is no such directory.
    """
    if path is not None and not path.parent.is_dir():
        raise PlanError(f"{option} {path}: {path.parent} is not a directory; create it first")


def write(what: str, path: Path, text: str) -> None:
    """Writes a file and says so on stderr."""
    path.write_text(text, encoding="utf-8")
    print(f"{what} saved: {path}", file=sys.stderr)
