"""The description of the Python interface names all that is public, argument by argument."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields

import pytest
from torch import nn

import autoplan
from autoplan.plan import Estimate, MeshPlan, Plan, SearchRecord
from autoplan.runtime.module import ParallelModule
from tests.unit.docs_text import DOCS, code, sections

TEXT = (DOCS / "api.md").read_text()
SECTIONS = sections(DOCS / "api.md")
METHODS = [name for name in vars(ParallelModule) if name[0] != "_" and not hasattr(nn.Module, name)]
FUNCTIONS = [name for name in autoplan.__all__ if inspect.isfunction(getattr(autoplan, name))]


def _section(name: str) -> str:
    return next(body for title, body in SECTIONS.items() if name in title.split(", "))


def _code(text: str) -> set[str]:
    """The words that stand in code."""
    return set(re.findall(r"\w+", code(text)))


@pytest.mark.parametrize("name", autoplan.__all__)
def test_every_public_name_is_described(name: str) -> None:
    assert name in _code(TEXT)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_argument_is_described_where_its_function_is(name: str) -> None:
    arguments = inspect.signature(getattr(autoplan, name)).parameters
    assert set(arguments) <= _code(_section(name))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_argument_in_a_table_is_one(name: str) -> None:
    rows = re.findall(r"^\| (`.+?) \|", _section(name), re.M)
    arguments = inspect.signature(getattr(autoplan, name)).parameters
    assert {word for row in rows for word in _code(row)} <= set(arguments)


def test_every_member_of_the_parallel_module_is_described() -> None:
    own = {name for name in vars(ParallelModule) if not name.startswith("_")} - {"forward"}
    assert own | {"plan", "data_rank", "data_world"} <= _code(SECTIONS["ParallelModule"])


@pytest.mark.parametrize("name", METHODS)
def test_every_argument_of_the_parallel_module_is_described(name: str) -> None:
    arguments = list(inspect.signature(getattr(ParallelModule, name)).parameters)[1:]
    written = re.search(rf"`{name}\((.*?)\)`", SECTIONS["ParallelModule"])
    assert written is not None
    assert [part.split("=")[0] for part in written[1].split(", ") if part] == arguments


def test_the_fields_of_a_plan_are_its_own() -> None:
    body = SECTIONS["Plan, the object"].partition("`dataclasses.replace`")[0]
    own = {f.name for kind in (Plan, MeshPlan, SearchRecord, Estimate) for f in fields(kind)}
    assert _code(body) <= own | {"Plan"}
