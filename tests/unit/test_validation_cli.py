"""``autoplan validate``: what it prints, as a report and as JSON, and what it refuses."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from autoplan.cli import main
from autoplan.report.validation import print_validation
from autoplan.validation.predict import predictions_of
from autoplan.validation.published.rows import read_rows
from tests.unit.measured_rows import write_csv

ROOT = Path(__file__).parents[2]


@pytest.fixture
def runs(tmp_path: Path) -> str:
    """Three runs of the same work, one reference, one that did not fit, one without its sizes."""
    return str(
        write_csv(
            tmp_path,
            {"peak_mem_gb": "60", "mem_kind": "torch peak reserved GB"},
            {"id": "run-2", "pp": "6", "dp": "16", "grad_accum": "96", "step_time_s": "41"},
            {"id": "run-3", "pp": "24", "dp": "4", "grad_accum": "384", "step_time_s": "44"},
            {"id": "ref-1", "set": "two", "quality": "R"},
            {"id": "oom-1", "set": "two", "oom": "1", "step_time_s": "", "micro_batch": "64",
             "grad_accum": "3", "recompute": "none"},
            {"id": "who-1", "set": "two", "layers": "", "model": "Unheard Of"},
        )
    )  # fmt: skip


def test_json_holds_every_row_and_the_summary(
    runs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", runs, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {"rows", "summary"}
    rows = {row["id"]: row for row in printed["rows"]}
    assert list(rows) == ["run-1", "run-2", "run-3", "ref-1", "oom-1", "who-1"]
    first = rows["run-1"]
    assert first["reported_s"] == 39.421
    assert first["error"] == pytest.approx(first["predicted_s"] / 39.421 - 1)
    assert first["reported_mem_bytes"] == 60 * 10**9
    assert first["mem_error"] == pytest.approx(first["predicted_mem_bytes"] / 60e9 - 1)
    assert first["skipped"] is None
    assert rows["oom-1"]["error"] is None
    assert rows["oom-1"]["out_of_memory"]
    assert "not stated" in rows["who-1"]["skipped"]
    assert rows["who-1"]["predicted_s"] is None
    sets = printed["summary"]["sets"]
    assert list(sets) == ["one", "two"]
    assert sets["one"]["step"]["rows"] == printed["summary"]["all"]["step"]["rows"] == 3
    assert sets["one"]["ranking"]["groups"] == 1
    assert sets["two"]["step"] is None
    assert (sets["two"]["rows"], sets["two"]["priced"]) == (3, 2)
    assert sets["two"]["out_of_memory"]["out_of_memory_rightly"] == 1


def test_the_report_fits_a_hundred_columns_and_names_what_is_not_priced(
    runs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", runs]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    text = "\n".join(lines)
    assert "two  3 rows, 2 priced" in text
    assert "Not priced" in text
    assert "who-1" in text
    assert "39.4 s" in text
    assert "all sets" in text


def test_no_figure_is_cut_on_a_narrow_terminal(runs: str) -> None:
    console = Console(file=io.StringIO(), width=80, highlight=False, record=True)
    print_validation(predictions_of(read_rows(Path(runs)).rows), (), console)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if "…" in line]
    assert "39.4 s" in "\n".join(lines)


def test_a_run_said_not_to_fit_that_did_is_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = {"micro_batch": "64", "grad_accum": "3", "recompute": "none"}
    assert main(["validate", str(write_csv(tmp_path, large))]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if " run-1 " in line]
    assert line.rstrip().endswith("no fit")


def test_one_set_alone(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", runs, "--set", "two", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {row["set"] for row in printed["rows"]} == {"two"}


def test_an_unknown_set_is_refused_with_those_there_are(
    runs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", runs, "--set", "three"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "--set three" in printed.err
    assert "one, two" in printed.err


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [({"gpu": None}, "no column gpu"), ({"layers": None, "hidden": None}, "layers, hidden")],
)
def test_another_kind_of_file_is_refused_in_one_line(
    tmp_path: Path,
    changes: dict[str, str | None],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["validate", str(write_csv(tmp_path, changes))]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert complaint in printed.err
    assert printed.err.count("\n") == 1


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(tmp_path / "none.csv")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_ignored_columns_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(write_csv(tmp_path, {"colour": "blue"}))]) == 0
    assert "columns ignored: colour" in capsys.readouterr().out


def test_validation_needs_no_torch(runs: str) -> None:
    program = (
        "import sys; from autoplan.cli import main; "
        f"main(['validate', {runs!r}]); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")
