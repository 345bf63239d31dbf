"""The examples that need one process run as they are."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def test_plan_only(capsys: pytest.CaptureFixture) -> None:
    runpy.run_path(str(EXAMPLES / "01_plan_only.py"), run_name="__main__")
    assert "layers.*.weight" in capsys.readouterr().out


def test_custom_operator(capsys: pytest.CaptureFixture) -> None:
    runpy.run_path(str(EXAMPLES / "04_custom_operator.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "example::gated_product has no rule" in printed
    assert "nothing found" in printed
    assert "Equal, within what rounding" in printed
