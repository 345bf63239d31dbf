"""What users are told about errors is what the code says."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from autoplan import errors
from autoplan.diagnosis import dims, structure
from autoplan.trace.refusals import RefusalKind
from tests.unit.docs_text import DOCS, ROOT, sections

PAGE = DOCS / "troubleshooting.md"
SECTIONS = sections(PAGE)
_LONG_ENOUGH = 3


def _rows(text: str) -> list[list[str]]:
    """Cells of the rows of all tables, without their heads."""
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line[:1] == "|"]
    cells = [[cell.strip() for cell in row] for row in rows]
    heads = [number - 1 for number, row in enumerate(cells) if set(row[0]) == {"-"}]
    return [row for n, row in enumerate(cells) if n not in heads and n - 1 not in heads]


def _messages() -> Iterator[str]:
    for title, text in SECTIONS.items():
        for row in _rows(text):
            column = 1 if title == "The model cannot be traced" and len(row) == 4 else 0
            yield from re.findall(r"`([^`]+)`", row[column])


@cache
def _texts() -> str:
    """All literals of the source, a line each; what is filled in is left out as ``…``."""
    found: list[str] = []
    for package in ("autoplan", "hardware_profiles"):
        for path in Path(ROOT, package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    found.append("".join(_part(each) for each in node.values))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found)


def _part(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else "…"


@pytest.mark.parametrize("message", list(_messages()))
def test_every_message_is_one_of_the_code(message: str) -> None:
    for piece in (piece.strip(" :;,") for piece in message.split("…")):
        assert piece in _texts()


def test_most_messages_are_told_by_several_words() -> None:
    lengths = [max(len(piece.split()) for piece in message.split("…")) for message in _messages()]
    assert sum(length >= _LONG_ENOUGH for length in lengths) > 0.9 * len(lengths) > 45


def test_every_kind_of_refusal_is_explained() -> None:
    kinds = [row[0] for row in _rows(SECTIONS["The model cannot be traced"]) if len(row) == 4]
    assert sorted(kinds) == sorted(get_args(RefusalKind))


def test_every_kind_of_finding_is_explained() -> None:
    listed = {row[0] for row in _rows(SECTIONS["What the doctor finds"])}
    assert listed == {kind for module in (structure, dims) for kind in _kinds(module)}


def _kinds(module: object) -> Iterator[str]:
    """The kinds of the findings that a module makes."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):  # pyright: ignore[reportArgumentType]
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        place = {"_limit": 0, "_finding": 1}.get(node.func.id)
        values = [word.value for word in node.keywords if word.arg == "kind"]
        if place is not None and len(node.args) > place:
            values.append(node.args[place])
        yield from (str(v.value) for v in values if isinstance(v, ast.Constant))


def test_every_class_of_errors_is_named() -> None:
    classes = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.AutoplanError)
    ]
    text = PAGE.read_text() + (DOCS / "api.md").read_text()
    assert [name for name in classes if f"`{name}`" not in text] == []
