"""What the documentation says: its files, their sections, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.glob("*.md")))

_SECTION = re.compile(r"^## (.+)\n((?:(?!^## ).*\n?)*)", re.M)
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
_CODE = re.compile(r"`+([^`]+)`+")


def sections(page: Path) -> dict[str, str]:
    """The text under each heading of the second level, by its title."""
    return {title.strip(): body for title, body in _SECTION.findall(page.read_text())}


def code(text: str) -> str:
    """All that stands in code."""
    return " ".join(_CODE.findall(text))


def commands(text: str) -> Iterator[list[str]]:
    """Arguments of each ``autoplan`` command in blocks of code, without those of ``torchrun``."""
    for language, block in _FENCED.findall(text):
        if language:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] == "autoplan":
                yield words[1:]
