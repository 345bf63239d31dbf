"""Reports in full, as files to read: text, JSON and HTML of one hand-written plan."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError
from rich.console import Console

from autoplan.plan import Plan
from autoplan.report import assumptions
from autoplan.report.html import page
from autoplan.report.summary import summary
from autoplan.report.summary_types import ADAPTER, schema
from autoplan.report.text import PIPE_WIDTH, print_report
from hardware_profiles.load import load
from hardware_profiles.spec import ClusterSpec, Provenance
from tests.unit.sample_pipeline import PIPELINE
from tests.unit.sample_plan import PLAN
from tests.unit.sample_timed import TIMED

GOLDEN = Path(__file__).parent.parent / "golden"
SCHEMA = Path(__file__).parents[2] / "docs" / "report.schema.json"


@pytest.fixture(autouse=True)
def known_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile whose values do not come and go."""
    monkeypatch.setattr(assumptions, "load", load_known)


def load_known(name: str) -> ClusterSpec:
    sources: dict[str, Provenance] = {"peak": "datasheet", "memory": "datasheet", "link": "fitted"}
    return replace(load(name), provenance=sources)


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


@pytest.mark.parametrize("plan", [TIMED, PIPELINE, PLAN], ids=["timed", "pipeline", "plain"])
def test_the_json_has_its_types(plan: Plan) -> None:
    ADAPTER.validate_json(json.dumps([summary(plan, search_s=1.5)], allow_nan=False))
    beside = {**summary(plan), "other": 1}
    with pytest.raises(ValidationError, match="other"):
        ADAPTER.validate_json(json.dumps([beside]))


def test_the_schema_in_the_docs() -> None:
    """To accept a change: write ``json.dumps(schema(), indent=2)`` and a newline to the file."""
    assert schema() == json.loads(SCHEMA.read_text())


def test_golden_page() -> None:
    """As for the text; open the file in a browser, wide and narrow, light and dark."""
    assert page(TIMED) == (GOLDEN / "report.html").read_text()
