"""The command line: what goes to stdout, to stderr and into the exit code."""

from __future__ import annotations

import gc
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from autoplan import api, plan_io
from autoplan.cli import main
from autoplan.cli.options import key_values, shapes
from autoplan.cli.progress import ProgressDisplay, logs_held
from autoplan.errors import InfeasibleError, PlanError
from hardware_profiles.load import names
from tests.unit.sample_plan import PLAN
from tests.unit.sample_timed import TIMED

ROOT = Path(__file__).parent.parent.parent
REQUEST = ["plan", "gpt2", "--cluster", "dgx-h100", "--global-batch", "64"]


@pytest.fixture
def plan_file(tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    plan_io.save(PLAN, path)
    return str(path)


@pytest.fixture
def timed_file(tmp_path: Path) -> str:
    path = tmp_path / "timed.json"
    plan_io.save(TIMED, path)
    return str(path)


def test_report_prints_the_stored_plan(plan_file: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["report", plan_file]) == 0
    printed = capsys.readouterr()
    assert "Fits: 40.0 GiB of 75.0 GiB" in printed.out
    assert printed.err == ""


def test_report_as_json_is_one_object(plan_file: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["report", plan_file, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["zero"] == 1
    assert record["search"]["seconds"] is None


def test_report_needs_no_torch(timed_file: str, tmp_path: Path) -> None:
    options = ["--html", str(tmp_path / "a.html"), "--trace", str(tmp_path / "a.json")]
    program = (
        "import sys; from autoplan.cli import main; "
        f"main({['report', timed_file, *options]!r}); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout


def test_report_writes_a_page_and_a_trace(
    timed_file: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    html, trace = tmp_path / "a.html", tmp_path / "a.trace"
    assert main(["report", timed_file, "--html", str(html), "--trace", str(trace)]) == 0
    printed = capsys.readouterr()
    assert "Fits: 22.0 GiB" in printed.out
    assert printed.err == f"html saved: {html}\ntrace saved: {trace}\n"
    assert html.read_text().startswith("<!DOCTYPE html>")
    assert json.loads(trace.read_text())["traceEvents"]


def test_a_plan_without_seconds_of_stages_has_no_trace(
    plan_file: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    trace = tmp_path / "a.trace"
    assert main(["report", plan_file, "--trace", str(trace)]) == 1
    assert "plan again for a trace" in capsys.readouterr().err
    assert not trace.exists()


@pytest.mark.parametrize("option", ["--html", "--trace"])
def test_files_in_no_directory_are_refused_before_the_work(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    target = tmp_path / "none" / "a"
    assert main([*REQUEST, option, str(target)]) == 1
    assert f"{option} {target}: {target.parent} is not a directory" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"], ["clusters"]])
def test_help_and_lists_need_neither_torch_nor_rich(arguments: list[str]) -> None:
    program = (
        "import sys; from autoplan.cli import main; "
        f"main({arguments!r}); sys.exit(bool({{'torch', 'rich.console'}} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_program_that_calls_it_keeps_its_garbage_collector() -> None:
    before = gc.get_threshold()
    assert main(["clusters"]) == 0
    assert gc.get_threshold() == before


def test_clusters_lists_every_profile(capsys: pytest.CaptureFixture) -> None:
    assert main(["clusters"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(names())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["plan", "gpt2", "--cluster", "dgx-h100"], "--global-batch"),
        (["plan"], "model"),
        ([*REQUEST, "--nodes", "two"], "--nodes"),
        ([*REQUEST, "--no-such-option"], "--no-such-option"),
        (["no-such-command"], "no-such-command"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_1(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture
) -> None:
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert named in printed.err.lower()


@pytest.mark.parametrize(
    ("raised", "code", "line"),
    [
        (PlanError("tp=3 does not\ndivide"), 1, "error: tp=3 does not divide\n"),
        (InfeasibleError("activations take too much"), 2, "error: activations take too much\n"),
        (KeyboardInterrupt(), 130, ""),
        (OSError(28, "No space left on device", "plan.json"), 1,
         "error: plan.json: No space left on device\n"),
    ],
)  # fmt: skip
def test_errors_are_one_line_and_an_exit_code(
    raised: BaseException,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise raised

    monkeypatch.setattr(api, "plan", fail)
    assert main(REQUEST) == code
    assert capsys.readouterr() == ("", line)


def test_plan_passes_every_option_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    asked = {}

    def record(model: str, **options: object) -> object:
        asked.update(options, model=model)
        return PLAN

    monkeypatch.setattr(api, "plan", record)
    output = tmp_path / "out.json"
    options = [
        "--nodes", "2", "--gpus-per-node", "4", "--seq-len", "512", "--input", "x=8x16",
        "--precision", "fp32", "--optimizer", "sgd", "--batch-norm", "local",
        "--pin", "dp=2", "--pin", "recompute=full",
        "--place", "*.mlp.*=Shard(0)", "--place", "w=Replicate()", "--memory-limit", "70GiB",
        "--memory-margin", "3%", "--allow-planned-only", "--time-limit", "90",
        "-o", str(output), "--json",
    ]  # fmt: skip
    assert main([*REQUEST, *options]) == 0
    del asked["progress"]
    assert asked == {
        "model": "gpt2", "cluster": "dgx-h100", "global_batch": 64, "nodes": 2, "gpus_per_node": 4,
        "seq_len": 512, "inputs": {"x": (8, 16)}, "precision": "fp32", "optimizer": "sgd",
        "pins": {"dp": "2", "recompute": "full"}, "memory_limit": "70GiB", "memory_margin": "3%",
        "placements": {"*.mlp.*": "Shard(0)", "w": "Replicate()"},
        "batch_norm": "local", "planned_only": True, "time_limit_s": 90.0,
    }  # fmt: skip
    assert plan_io.load(output) == PLAN
    printed = capsys.readouterr()
    assert json.loads(printed.out)["search"]["seconds"] >= 0
    assert printed.err == f"plan saved: {output}\n"


def test_a_file_that_is_no_plan_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no plan")
    assert main(["report", str(path)]) == 1
    assert str(path) in capsys.readouterr().err


def test_logs_are_held_back_while_planning_only(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("torch.tracing")
    with logs_held():
        logger.error("a traceback")
    logger.error("later")
    assert caplog.messages == ["later"]


def test_key_values() -> None:
    assert key_values("--pin", ["dp=2", "recompute=full"]) == {"dp": "2", "recompute": "full"}


@pytest.mark.parametrize("texts", [["dp"], ["=2"], ["dp="], ["dp=2", "dp=4"]])
def test_key_values_refuses(texts: list[str]) -> None:
    with pytest.raises(PlanError, match="--pin"):
        key_values("--pin", texts)


def test_shapes() -> None:
    assert shapes(["ids=8x1024", "x=4,3,224,224"]) == {"ids": (8, 1024), "x": (4, 3, 224, 224)}


@pytest.mark.parametrize("text", ["x=8xa", "x=0x3", "x=-1", "x=8x", "x=²"])
def test_shapes_refuses(text: str) -> None:
    with pytest.raises(PlanError, match="--input x="):
        shapes([text])


def test_quick_work_shows_no_progress(capsys: pytest.CaptureFixture) -> None:
    with ProgressDisplay() as progress:
        progress(0.5, "searching")
    assert capsys.readouterr() == ("", "")


def test_long_work_shows_a_line_for_every_tenth_in_a_pipe(capsys: pytest.CaptureFixture) -> None:
    with ProgressDisplay(quiet_s=0.0) as progress:
        progress(0.1, "tracing")
        progress._timer.join(timeout=60)
        progress(0.15, "tracing")
        progress(0.5, "1 of 9")
        progress(0.55, "2 of 9")
        progress(0.6, "3 of 9")
    assert capsys.readouterr() == ("", "10 % tracing\n50 % 1 of 9\n60 % 3 of 9\n")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("autoplan pl", {"plan"}),
        ("autoplan plan gpt2-x", {"gpt2-xl"}),
        ("autoplan plan gpt2 --cluster dgx-h", {"dgx-h100", "dgx-h200"}),
        ("autoplan plan gpt2 --grow", {"--grow-batch"}),
    ],
)
def test_shells_complete(typed: str, offered: set[str], monkeypatch, capsys) -> None:
    monkeypatch.setenv("_AUTOPLAN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    with pytest.raises(SystemExit):
        main([])
    assert set(capsys.readouterr().out.split()) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_for_every_shell(shell: str, capsys) -> None:
    assert main(["completion", shell]) == 0
    assert f"_AUTOPLAN_COMPLETE=complete_{shell}" in capsys.readouterr().out
    assert main(["completion", "tcsh"]) == 1


def test_a_batch_grows_along_nodes_alone(capsys) -> None:
    assert main([*REQUEST, "--grow-batch"]) == 1
    assert "--grow-batch: the batch grows along --scaling" in capsys.readouterr().err
    assert main([*REQUEST, "--scaling", "none"]) == 1
    assert "--scaling none: give numbers" in capsys.readouterr().err


def test_nodes_are_seen_to_exist_before_planning(monkeypatch, capsys) -> None:
    monkeypatch.setattr(api, "plan", lambda *_, **__: pytest.fail("it planned"))
    assert main([*REQUEST, "--scaling", "1..999999999999"]) == 1
    assert "nodes: " in capsys.readouterr().err
    assert main([*REQUEST, "--scaling", "4..1"]) == 1
    assert "--scaling 4..1: give numbers" in capsys.readouterr().err
