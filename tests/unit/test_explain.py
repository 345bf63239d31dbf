"""``autoplan explain`` from the command line and from Python."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import autoplan
from autoplan import plan_io
from autoplan.cli import main
from autoplan.explanation import Explanation, Memory, MoreMemory, Variant
from autoplan.report.explanation import print_explanation
from tests.robustness import models
from tests.unit.old_plans import as_version
from tests.unit.sample_plan import GIB, PLAN

FACTORY = "tests.robustness.models:small"
CLUSTER = {"cluster": "cpu-gloo", "global_batch": 8, "gpus_per_node": 4, "precision": "fp32"}


@pytest.fixture(scope="module")
def gpt2() -> autoplan.Plan:
    return autoplan.plan("gpt2", cluster="dgx-h100", global_batch=16, seq_len=128)


@pytest.fixture
def factory_file(tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    autoplan.save_plan(autoplan.plan(FACTORY, **CLUSTER), path)
    return str(path)


def test_alternatives_of_gpt2_can_be_pinned(gpt2: autoplan.Plan) -> None:
    found = autoplan.explain(gpt2)
    assert found.plan.estimate == gpt2.estimate
    assert found.is_best
    assert [rival.alternative for rival in found.rivals] == list(gpt2.alternatives)
    rival = found.rivals[0]
    answer = autoplan.explain(gpt2, why_not=rival.pins).why_not
    assert answer is not None
    assert answer.plan is not None
    assert answer.plan.estimate.step_s == rival.alternative.step_s
    assert answer.plan.estimate.peak_memory_bytes == rival.alternative.peak_memory_bytes


def test_why_not_on_the_command_line(
    gpt2: autoplan.Plan, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "plan.json"
    autoplan.save_plan(gpt2, path)
    asked = ["--why-not", "tp=4", "--why-not", "zero=0"]
    assert main(["explain", str(path), *asked, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    answer = record["why_not"]
    assert answer["pins"] == {"tp": 4, "zero": 0}
    assert answer["verdict"] == "slower"
    assert sum(answer["time_difference_s"].values()) == pytest.approx(answer["step_difference_s"])
    assert main(["explain", str(path), *asked]) == 0
    shown = capsys.readouterr().out
    assert "Why not tp=4, zero=0" in shown
    assert re.search(r"slower: .* a step against", shown)
    assert re.search(r"exposed communication +\S+ \w+ +\S+ \w+ +\+", shown)


def test_a_factory_is_run_only_when_named(factory_file: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["explain", factory_file]) == 1
    assert f"give --model {FACTORY}" in capsys.readouterr().err
    assert main(["explain", factory_file, "--model", FACTORY]) == 0
    shown = capsys.readouterr().out
    assert "What binds" in shown
    assert "Why it won" in shown
    assert "--pin dp=" in shown


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--why-not", "tp"], "--why-not tp: expected --why-not name=value"),
        (["--why-not", "zeroo=2"], "unknown pin 'zeroo'; did you mean 'zero'?"),
        (["--why-not", "tp=2", "--why-not", "tp=4"], "--why-not tp is given twice"),
        (["--why-not", "zero=7"], "pin zero=7: expected a number from 0 to 3"),
        (["--model", "tests.robustness.models:wider"], "made for another tests.robustness.models"),
        (["--model", "gpt3"], "unknown model 'gpt3'"),
    ],
)
def test_bad_questions_are_one_line(
    arguments: list[str], named: str, factory_file: str, capsys: pytest.CaptureFixture
) -> None:
    options = arguments if "--model" in arguments else [*arguments, "--model", FACTORY]
    assert main(["explain", factory_file, *options]) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert named in printed.err


def test_what_cannot_be_is_an_answer(factory_file: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["explain", factory_file, "--model", FACTORY, "--why-not", "tp=3"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "It cannot be: tp=3 does not divide the 4 GPUs; tp can be 1, 2, 4." in shown


def test_a_missing_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["explain", str(tmp_path / "none.json")]) == 1
    assert "cannot read plan file" in capsys.readouterr().err


def test_a_module_is_given_from_python(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    model, inputs = models.small()
    plan = autoplan.plan(model, inputs, **CLUSTER)
    with pytest.raises(autoplan.PlanError, match=r"use autoplan\.explain\(plan, model"):
        autoplan.explain(plan)
    path = tmp_path / "plan.json"
    autoplan.save_plan(plan, path)
    found = autoplan.explain(path, model, inputs, why_not={"recompute": "none"})
    assert found.why_not is not None
    assert found.plan.estimate == plan.estimate
    autoplan.print_report(found)
    assert "Why not recompute=none" in capsys.readouterr().out


def test_what_does_not_fit_is_told_with_what_would() -> None:
    asked = {"cluster": "cpu-gloo", "global_batch": 2**18, "precision": "fp32"}
    free = autoplan.plan(FACTORY, **asked, gpus_per_node=1, pins={"microbatch": 2**18})
    limit = free.estimate.peak_memory_bytes * 99 // 100
    plan = autoplan.plan(FACTORY, **asked, gpus_per_node=1, memory_limit=limit, memory_margin=0)
    answer = autoplan.explain(plan, FACTORY, why_not={"microbatch": 2**18}).why_not
    assert answer is not None
    assert answer.verdict == "does not fit"
    assert "without the pin microbatch=262144 it fits" in answer.reason or (
        "without the memory limit it fits" in answer.reason
    )
    assert answer.plan is not None
    assert answer.plan.estimate.peak_memory_bytes == free.estimate.peak_memory_bytes


def test_a_profile_that_changed_is_refused(gpt2: autoplan.Plan) -> None:
    with pytest.raises(autoplan.PlanError, match="dgx-h100 changed since"):
        autoplan.explain(replace(gpt2, profile_digest="0" * 64))


def test_the_price_of_memory_is_shown() -> None:
    def variant(step_s: float, need: int) -> Variant:
        estimate = replace(PLAN.estimate, step_s=step_s, peak_memory_bytes=need)
        return Variant(
            mesh=PLAN.mesh, zero=1, microbatch=8, num_microbatches=2, recomputed_blocks=6,
            blocks=12, estimate=estimate,
        )  # fmt: skip

    more = MoreMemory(added_bytes=4 * GIB, plan=variant(0.239, 78 * GIB), difference_s=-0.011)
    found = Explanation(
        model="gpt2", cluster="dgx-h100", plan=variant(0.25, 75 * GIB), is_best=False,
        lower_bound_s=0.249, rivals=(), why_not=None,
        memory=Memory(
            binds=True, unlimited=variant(0.2, 90 * GIB), needed_bytes=15 * GIB, more=(more,)
        ),
    )  # fmt: skip
    output = io.StringIO()
    print_explanation(found, Console(file=output, width=100, highlight=False))
    shown = output.getvalue()
    assert re.search(r"\+4\.00 GiB +239 ms +-11\.0 ms", shown)
    assert "which needs 15.0 GiB more" in " ".join(shown.split())
    assert "plan again" in shown


def test_explaining_reads_old_files(gpt2: autoplan.Plan) -> None:
    old = plan_io.from_json(as_version(gpt2, 1))
    found = autoplan.explain(old, why_not={"zero": gpt2.zero})
    assert found.why_not is not None
    assert found.why_not.verdict == "as fast"
