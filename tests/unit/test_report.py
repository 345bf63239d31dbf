"""The report shows what the plan holds, folded and in units people read."""

from __future__ import annotations

import io
import json
import re
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from autoplan.plan import MeshPlan, Plan
from autoplan.report import units, words
from autoplan.report.fold import block_pattern, parameter_rows, ranges
from autoplan.report.summary import summary
from autoplan.report.text import print_report
from cost_models.memory import MemoryBreakdown
from hardware_profiles.load import load
from tests.unit.sample_plan import BLOCKS, ESTIMATE, GIB, LAYERS, PLAN, ROOT


def rendered(plan: Plan, encoding: str = "utf-8", width: int = 100) -> str:
    output = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_report(plan, Console(file=output, width=width, highlight=False))
    output.seek(0)
    return output.read()


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0 s"), (1.5, "1.50 s"), (0.0123, "12.3 ms"), (4.2e-5, "42.0 us"), (125, "125 s"),
     (0.9999, "1.00 s"), (3e-9, "3.00 ns")],
)  # fmt: skip
def test_seconds(value: float, shown: str) -> None:
    assert units.seconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0 B"), (512, "512 B"), (1024, "1.00 KiB"), (80 * GIB, "80.0 GiB"), (3 << 20, "3.00 MiB")],
)
def test_bytes(value: int, shown: str) -> None:
    assert units.nbytes(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0 %"), (1e-5, "< 0.1 %"), (0.034, "3.4 %"), (0.126, "13 %"), (1, "100 %")],
)
def test_percent(value: float, shown: str) -> None:
    assert units.percent(value) == shown


def test_a_memory_limit_and_placements_are_stated() -> None:
    assert "limited" not in rendered(PLAN)
    placements = (("*.attn.*", "Shard(0)"),)
    job = replace(PLAN.job, memory_limit_bytes=70 * GIB, placements=placements)
    shown = rendered(replace(PLAN, job=job))
    assert "Memory is limited to 70.0 GiB a device, of which 5.0 % is left free." in shown
    assert re.search(r"memory margin +5.0 % of the limit is left free", shown)
    assert re.search(r"placed +\*\.attn\.\* = Shard\(0\)", shown)


@pytest.mark.parametrize(("value", "shown"), [(0.5, "0.5"), (262144, "262k"), (1.5e9, "1.50G")])
def test_count(value: float, shown: str) -> None:
    assert units.count(value) == shown


@settings(deadline=None, max_examples=50)
@given(st.sets(st.integers(0, 60), min_size=1))
def test_ranges_name_every_number_once(numbers: set[int]) -> None:
    found = []
    for run in ranges(sorted(numbers)).split(", "):
        first, _, last = run.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    assert found == sorted(numbers)


def test_repeated_blocks_fold_to_a_star() -> None:
    assert dict(parameter_rows((LAYERS, ROOT))) == {
        "transformer.wte.weight": "Replicate()",
        "transformer.ln_f.weight": "Replicate()",
        "transformer.h.*.ln_1.weight": "Replicate()",
        "transformer.h.*.attn.c_attn.weight": "Shard(1, parts=3)",
        "transformer.h.*.attn.c_proj.weight": "Shard(0)",
    }


def test_two_kinds_of_one_pattern_show_their_indices() -> None:
    dense = replace(LAYERS, blocks=BLOCKS[:2], parameters={"mlp.weight": "Shard(0)"})
    sparse = replace(
        LAYERS, kind=BLOCKS[2], blocks=BLOCKS[2:], parameters={"mlp.weight": "Shard(1)"}
    )
    assert dict(parameter_rows((dense, sparse))) == {
        "transformer.h.{0-1}.mlp.weight": "Shard(0)",
        "transformer.h.{2-11}.mlp.weight": "Shard(1)",
    }


def test_parameters_outside_blocks_fold_where_they_are_placed_alike() -> None:
    root = replace(
        ROOT,
        parameters={
            **{f"layers.{index}.weight": "Shard(0)" for index in (0, 1, 2, 5)},
            "layers.3.weight": "Shard(1)",
            **{f"layers.{index}.bias": "Replicate()" for index in range(6)},
        },
    )
    assert list(parameter_rows((root,))) == [
        ("layers.{0-2, 5}.weight", "Shard(0)"),
        ("layers.3.weight", "Shard(1)"),
        ("layers.*.bias", "Replicate()"),
    ]


def test_blocks_at_different_depths_are_listed() -> None:
    assert block_pattern(["a.0", "a.b.1"]) == "{a.0, a.b.1}"


def test_report_states_every_assumption() -> None:
    text = rendered(PLAN)
    for stated in ("gpt2 (zoo), 1024 tokens", "dgx-h100, 1 node of 8", "64 samples", "bf16",
                   "fp32 master weights", "adamw", "5.0 %", "tp=2"):  # fmt: skip
        assert stated in text


@pytest.mark.parametrize("width", [80, 100, 120])
def test_report_fits_its_columns_and_cuts_nothing(width: int) -> None:
    text = rendered(PLAN, width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text


def test_report_says_that_a_device_lacks_the_precision() -> None:
    job = replace(PLAN.job, cluster="dgx-v100")
    assert "V100-SXM2-32GB has no fast bf16" in rendered(replace(PLAN, job=job), width=120)
    assert "no fast" not in rendered(PLAN)


@settings(deadline=None, max_examples=20)
@given(st.floats(1e-9, 0.5))
def test_the_stated_gap_is_no_less_than_the_proven_one(gap: float) -> None:
    text = rendered(replace(PLAN, search=replace(PLAN.search, gap=gap)), width=300)
    (stated,) = re.findall(r"within ([\d.]+) % of the best", text)
    rounded_up = 0.1 if gap < 0.099 else 1.0
    assert 100 * gap <= float(stated) + 1e-9 <= 100 * gap + rounded_up + 1e-6


def test_report_shows_every_category_that_holds_bytes() -> None:
    every = MemoryBreakdown(**{field.name: GIB for field in fields(MemoryBreakdown)})
    stage = replace(ESTIMATE.stages[0], memory=every)
    text = rendered(replace(PLAN, estimate=replace(ESTIMATE, stages=(stage,))))
    assert text.count("1.00 GiB") == len(fields(MemoryBreakdown))
    assert "gathered parameters" not in rendered(PLAN)


def test_report_parts_of_the_step_add_up() -> None:
    parts = words.time_parts(ESTIMATE)
    assert sum(value for _, value in parts) == pytest.approx(ESTIMATE.step_s)
    assert [name for name, _ in parts] == ["compute", "exposed communication", "optimizer"]


def test_report_says_that_memory_binds_only_when_something_faster_does_not_fit() -> None:
    assert "Memory binds: DDP would take 200 ms but needs 90.0 GiB" in rendered(PLAN)
    slower = tuple(replace(other, step_s=1.0) for other in PLAN.alternatives)
    assert "Memory binds" not in rendered(replace(PLAN, alternatives=slower))


def test_report_flags_a_changed_profile() -> None:
    cluster = load("dgx-h100")
    assert "CHANGED" in rendered(PLAN)
    unchanged = rendered(replace(PLAN, profile_digest=cluster.digest))
    assert "CHANGED" not in unchanged
    assert "datasheet" in unchanged
    assert "H100" in unchanged


def test_report_shows_an_assumed_price() -> None:
    assert "USD" not in rendered(PLAN)
    rented = replace(PLAN, job=replace(PLAN.job, cluster="p5"))
    assert "12.29 USD per GPU hour assumed" in rendered(rented)


def test_report_of_a_plan_for_a_profile_that_is_gone() -> None:
    plan = replace(PLAN, job=replace(PLAN.job, cluster="no-such-profile"))
    assert "not installed here" in rendered(plan)


def test_report_of_whole_parameters_is_one_line() -> None:
    whole = replace(LAYERS, parameters=dict.fromkeys(LAYERS.parameters, "Replicate()"))
    plan = replace(PLAN, mesh=MeshPlan(dp=8), regions=(ROOT, whole))
    assert "tp 1: every parameter is whole" in rendered(plan)


def test_report_without_block_characters() -> None:
    assert "#####" in rendered(PLAN, encoding="ascii")


def test_names_are_text_and_never_markup() -> None:
    name = "[red]x[/red][/nothing]"
    job = replace(PLAN.job, model=replace(PLAN.job.model, name=name), cluster=name, optimizer=name)
    others = tuple(replace(other, name=name, reason=name) for other in PLAN.alternatives)
    assert rendered(replace(PLAN, job=job, alternatives=others)).count("[red]") >= 4


@pytest.mark.parametrize(
    ("recomputed", "expected"),
    [
        ((), {"mode": "none", "recomputed_blocks": 0, "blocks": 12, "operators": []}),
        (BLOCKS[:5], {"mode": "partial", "recomputed_blocks": 5, "blocks": 12, "operators": []}),
        (BLOCKS, {"mode": "full", "recomputed_blocks": 12, "blocks": 12, "operators": []}),
    ],
)
def test_summary_of_recompute(recomputed: tuple[str, ...], expected: dict[str, object]) -> None:
    plan = replace(PLAN, regions=(ROOT, replace(LAYERS, recomputed=recomputed)))
    assert summary(plan)["recompute"] == expected


def test_summary_is_json_with_the_documented_fields() -> None:
    record = json.loads(json.dumps(summary(PLAN, search_s=1.5), allow_nan=False))
    assert set(record) >= {"mesh", "zero", "microbatch", "num_microbatches", "schedule",
                           "recompute", "estimate", "search", "alternatives"}  # fmt: skip
    assert record["mesh"] == {
        "pp": 1, "dp": 4, "cp": 1, "ep": 1, "tp": 2, "outermost": "pp",
    }  # fmt: skip
    assert set(record["estimate"]) >= {
        "step_s", "compute_s", "exposed_comm_s", "bubble_s", "optimizer_s", "tokens_per_s", "mfu",
        "peak_memory_bytes", "stages",
    }  # fmt: skip
    assert record["estimate"]["stages"][0]["memory"]["total"] == 40 * GIB
    assert record["search"]["seconds"] == 1.5
    assert record["search"]["gap"] == 0.02
    assert record["alternatives"][0]["mesh"]["dp"] == 8
