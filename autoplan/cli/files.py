"""Files that commands write: refused before the work where they cannot be, named when written."""

from __future__ import annotations

import sys
from pathlib import Path

from autoplan.errors import AutoplanError, PlanError, ProfileError


def check_directory(option: str, path: Path | None, error: type[AutoplanError] = PlanError) -> None:
    """Refuses a file that cannot be written.

    Raises:
        AutoplanError: there is no such directory; of the class ``error``.
    """
    if path is not None and not path.parent.is_dir():
        raise error(f"{option} {path}: {path.parent} is not a directory; create it first")


def check_profile(output: Path | None) -> None:
    """Refuses a file ``-o`` that is none for a profile.

    Raises:
        ProfileError: it does not end in .toml, or there is no such directory.
    """
    if output is not None and output.suffix != ".toml":
        raise ProfileError(f"-o {output}: the name of a profile ends in .toml")
    check_directory("-o", output, ProfileError)


def write(what: str, path: Path, text: str) -> None:
    """Writes a file and says so on stderr."""
    path.write_text(text, encoding="utf-8")
    print(f"{what} saved: {path}", file=sys.stderr)
