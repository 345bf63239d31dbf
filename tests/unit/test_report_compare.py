"""Two plans side by side: what was changed is told, and nothing else."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from autoplan import plan_io
from autoplan.cli import main
from autoplan.job import Pins
from autoplan.plan import MeshPlan, Plan
from autoplan.report.compare import print_comparison, summary
from autoplan.report.differences import Choice, compare
from tests.unit import sample_pipeline
from tests.unit.sample_plan import BLOCKS, ESTIMATE, LAYERS, MEMORY, PLAN, ROOT

REPO = Path(__file__).parent.parent.parent
DP8 = replace(
    PLAN,
    job=replace(PLAN.job, pins=Pins()),
    mesh=MeshPlan(dp=8),
    zero=3,
    microbatch=4,
    estimate=replace(ESTIMATE, step_s=0.3, compute_s=0.25),
)


def printed(first: Plan, second: Plan) -> str:
    output = io.StringIO()
    print_comparison(first, second, ("a", "b"), Console(file=output, width=100, highlight=False))
    return output.getvalue()


def test_a_plan_beside_itself_differs_in_nothing() -> None:
    found = compare(PLAN, PLAN)
    assert found.same_step
    assert (found.questions, found.decisions, found.placements, found.operators) == ((),) * 4
    assert {amount.difference for amount in (*found.time_s, *found.memory_bytes)} == {0}
    assert "Both are the same plan." in printed(PLAN, PLAN)


def test_what_was_asked_and_decided_otherwise_is_told() -> None:
    found = compare(PLAN, DP8)
    assert [choice.name for choice in found.questions] == ["pinned"]
    assert found.decisions == (
        Choice(name="mesh", first="dp 4 x tp 2", second="dp 8"),
        Choice(name="ZeRO", first="stage 1", second="stage 3"),
        Choice(name="microbatches", first="2 of 8", second="2 of 4"),
    )
    differences = {amount.name: amount.difference for amount in found.time_s}
    assert differences["compute_s"] == pytest.approx(0.05)
    assert differences["step_s"] == pytest.approx(0.05)
    assert "b takes 20 % more time: 300 ms a step against 250 ms." in printed(PLAN, DP8)


def test_placements_are_told_for_all_layers_or_for_those_that_differ() -> None:
    whole = {**LAYERS.parameters, "attn.c_proj.weight": "Replicate()"}
    everywhere = replace(PLAN, regions=(ROOT, replace(LAYERS, parameters=whole)))
    (row,) = compare(PLAN, everywhere).placements
    expected = Choice(
        name="transformer.h.*.attn.c_proj.weight", first="Shard(0)", second="Replicate()"
    )
    assert row == expected
    rest = replace(LAYERS, blocks=BLOCKS[3:], recomputed=BLOCKS[3:6])
    early = replace(LAYERS, blocks=BLOCKS[:3], recomputed=BLOCKS[:3], parameters=whole)
    (row,) = compare(PLAN, replace(PLAN, regions=(ROOT, early, rest))).placements
    assert row == replace(expected, name="transformer.h.{0-2}.attn.c_proj.weight")


def test_operators_are_counted_by_module() -> None:
    ours = replace(LAYERS, operators={"attn.c_proj/addmm": "k", "attn/softmax": "d1", "add": "d1"})
    theirs = replace(ours, operators={**ours.operators, "attn.c_proj/addmm": "n"})
    found = compare(replace(PLAN, regions=(ROOT, ours)), replace(PLAN, regions=(ROOT, theirs)))
    assert found.operators == (Choice(name="transformer.h.*.attn", first="1", second="2"),)


def test_another_batch_is_compared_by_samples_and_said_first() -> None:
    twice = replace(
        PLAN,
        job=replace(PLAN.job, global_batch=128),
        num_microbatches=4,
        estimate=replace(ESTIMATE, step_s=0.4, samples_per_s=320.0),
    )
    text = printed(PLAN, twice)
    assert "b takes 20 % less time: 320 samples/s against 256, with another batch." in text
    assert text.index("Asked otherwise") < text.index("Decided otherwise")
    assert [choice.name for choice in compare(PLAN, twice).questions] == ["batch"]


def test_other_devices_are_compared_by_what_a_sample_takes_of_them() -> None:
    more = replace(
        PLAN,
        job=replace(PLAN.job, nodes=2),
        mesh=MeshPlan(dp=8, tp=2),
        estimate=replace(ESTIMATE, step_s=0.125, samples_per_s=512.0),
    )
    # 8 devices / 256 a second against 16 / 512.
    text = " ".join(printed(PLAN, more).split())
    assert "16 devices against 8: 31.2 ms of a device for each sample against 31.2 ms." in text


def test_other_models_have_no_verdict() -> None:
    text = printed(PLAN, sample_pipeline.PIPELINE)
    assert "They train different models" in text
    assert "takes" not in text.split("Asked otherwise")[0]


def test_ranks_that_a_plan_does_not_have_are_left_out() -> None:
    found = compare(PLAN, sample_pipeline.PIPELINE)
    assert [rank.memory_bytes.first for rank in found.ranks] == [MEMORY.total, None, None, None]
    assert [rank.memory_bytes.second for rank in found.ranks] == [
        stage.memory.total for stage in sample_pipeline.PIPELINE.estimate.stages
    ]


def test_json_has_the_figures_of_the_plans() -> None:
    record = json.loads(json.dumps(summary(PLAN, DP8, ("a", "b")), allow_nan=False))
    assert record["plans"] == ["a", "b"]
    assert record["time_s"][-1]["first"] == 0.25
    assert record["memory_bytes"][-1] == {
        "name": "total", "first": MEMORY.total, "second": MEMORY.total, "difference": 0,
    }  # fmt: skip


def test_the_command_needs_no_torch(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("ours.json", "theirs.json")]
    for plan, path in zip((PLAN, DP8), files, strict=True):
        plan_io.save(plan, path)
    program = (
        "import sys; from autoplan.cli import main; "
        f"main(['compare', *{files!r}]); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPO, capture_output=True, check=False, timeout=60, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ours: gpt2 on 8 x")
    assert "\x1b" not in done.stdout


def test_a_file_that_is_no_plan_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "plan.json"
    path.write_text("{}")
    assert main(["compare", str(path), str(path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1
