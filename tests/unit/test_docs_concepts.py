"""The concepts have every pin, every section of a report, and every part of the code."""

from __future__ import annotations

import ast
import inspect
import re
from typing import get_args

from autoplan.report import text
from autoplan.request import PIN_NAMES
from cost_models.schedules import ScheduleName
from tests.unit.docs_text import DOCS, ROOT, code, sections

CONCEPTS = sections(DOCS / "concepts.md")
_NOT_SEARCHED = {"zbv"}


def test_every_pin_is_explained() -> None:
    first_cells = re.findall(r"^\| (`.+?) \|", CONCEPTS["Pins"], re.M)
    assert set(re.findall(r"\w+", code(" ".join(first_cells)))) == set(PIN_NAMES)


def test_every_schedule_that_can_be_pinned_is_named() -> None:
    assert set(get_args(ScheduleName)) - _NOT_SEARCHED <= set(code(CONCEPTS["Pins"]).split())


def test_every_section_of_a_report_is_explained() -> None:
    titles = [
        str(part.value)
        for node in ast.walk(ast.parse(inspect.getsource(text.print_report)))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "_section"
        for part in [getattr(node.args[1], "values", [node.args[1]])[0]]
        if isinstance(part, ast.Constant)
    ]
    listed = re.findall(r"^\| (.+?) \|", CONCEPTS["Reading a report"], re.M)
    assert sorted(titles) == sorted(set(listed) - {"part", "---", "first lines"})


def test_every_package_has_its_line() -> None:
    packages = {path.parent.name for path in ROOT.glob("autoplan/*/__init__.py")}
    named = set(re.findall(r"autoplan/(\w+)/", (DOCS / "code.md").read_text()))
    assert packages == named
