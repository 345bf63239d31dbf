"""Reports in full, as files to read: text, JSON and HTML of one hand-written plan."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from autoplan.report.html import page
from autoplan.report.summary import summary
from autoplan.report.text import PIPE_WIDTH, print_report
from tests.unit.sample_timed import TIMED

GOLDEN = Path(__file__).parent.parent / "golden"


def text() -> str:
    output = io.StringIO()
    print_report(TIMED, Console(file=output, width=PIPE_WIDTH, highlight=False))
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines()) + "\n"


def test_golden_text() -> None:
    """To accept a change: write what ``text`` returns to the file, and read it."""
    assert text() == (GOLDEN / "report.txt").read_text()


def test_golden_json() -> None:
    """As for the text."""
    found = json.loads(json.dumps(summary(TIMED), allow_nan=False))
    assert found == json.loads((GOLDEN / "report.json").read_text())


def test_golden_page() -> None:
    """As for the text; open the file in a browser, wide and narrow, light and dark."""
    assert page(TIMED) == (GOLDEN / "report.html").read_text()
