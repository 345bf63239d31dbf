"""The description of the commands has every command and option, and no others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from autoplan.cli.commands import app
from tests.unit.docs_text import DOCS, PAGES, code, commands, sections

GROUP: Any = typer.main.get_command(app)
SECTIONS = sections(DOCS / "cli.md")
COMMANDS = sorted(GROUP.commands)


def _options(name: str) -> set[str]:
    """All spellings of the options of a command."""
    parameters = GROUP.commands[name].params
    return {text for each in parameters for text in each.opts if text.startswith("-")}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_described_and_no_other(name: str) -> None:
    table = code("\n".join(re.findall(r"^\| (`.+?) \|", SECTIONS[name], re.M)))
    assert set(re.findall(r"(?<!\S)--?[a-z][\w-]*", table.replace(",", " "))) == _options(name)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example(name: str) -> None:
    assert name in {words[0] for words in commands(SECTIONS[name])}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_documentation_are_read_by_the_parser(page: Path) -> None:
    for name, *rest in commands(page.read_text()):
        GROUP.commands[name].make_context(name, rest)


def test_titles_are_commands() -> None:
    assert sorted(SECTIONS) == COMMANDS
