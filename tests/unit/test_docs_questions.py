"""The commands that answer users' questions run as they are written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from autoplan import load_plan, plan_io
from autoplan.cli import main
from tests.unit.docs_text import DOCS, ROOT, commands
from tests.unit.sample_timed import TIMED

COMMANDS = list(commands((DOCS / "questions.md").read_text()))
FOUND = {"doctor": (0, 2)}
QUICK = ("report", "compare", "export", "validate")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands run: a user's folder with the file of published runs."""
    data = tmp_path / "benchmarks" / "data"
    data.mkdir(parents=True)
    shutil.copy(ROOT / "benchmarks" / "data" / "training.csv", data)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _run(words: list[str]) -> None:
    assert main(words) in FOUND.get(words[0], (0,)), " ".join(words)


def test_what_is_read_from_plan_files(folder: Path) -> None:
    for name in ("plan.json", "small.json", "pipeline.json"):
        plan_io.save(TIMED, folder / name)
    for words in COMMANDS:
        if words[0] in QUICK:
            _run(words)


@pytest.mark.slow
def test_all_commands_in_their_order(folder: Path, capsys: pytest.CaptureFixture) -> None:
    for words in COMMANDS:
        _run(words)
    printed = capsys.readouterr().out
    assert "in 2 replicas" in printed
    assert load_plan("plan.json").estimate.modules
    assert "Why not recompute=full" in printed
