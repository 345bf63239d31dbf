"""Constants in the files of hardware profiles, as fits read and write them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import getitem
from pathlib import Path


def read_values(path: Path, names: Iterable[str]) -> dict[str, float]:
    """The values of these constants; dotted names are those of nested tables."""
    found = tomllib.loads(path.read_text())
    return {name: reduce(getitem, name.split("."), found)["value"] for name in names}


def write_values(path: Path, values: Mapping[str, float]) -> None:
    """Puts the values into the file, leaving provenance and sources as they are."""
    text = path.read_text()
    for name, value in values.items():
        pattern = rf"^({re.escape(name)} = {{ value = )[^,]+"
        text, count = re.subn(pattern, rf"\g<1>{value!r}", text, flags=re.MULTILINE)
        assert count == 1, f"{path.name} has no {name}"
    path.write_text(text)
