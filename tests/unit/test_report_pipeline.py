"""Reports of plans with a pipeline: schedule, ranks, several variants of a kind of block."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from autoplan.plan import MeshPlan, Plan, RegionPlan, StagePlan
from autoplan.report import words
from autoplan.report.fold import named_blocks, parameter_rows
from autoplan.report.recompute import recompute, recompute_share
from autoplan.report.summary import summary
from autoplan.report.text import print_report
from tests.unit import sample_plan
from tests.unit.sample_pipeline import (
    ALTERNATIVES,
    EARLY_REGION,
    ESTIMATE,
    GIB,
    LATE_REGION,
    LAYERS,
    PIPELINE,
    RANKS,
    ROOT,
    STAGES,
)

ONE_STAGE_A_RANK = replace(
    PIPELINE,
    schedule="1f1b",
    stages=tuple(
        StagePlan(
            rank=rank, first=LAYERS[8 * rank] if rank else "embed/add",
            blocks=LAYERS[8 * rank : 8 * rank + 8],
        )
        for rank in range(4)
    ),
)  # fmt: skip


def rendered(plan: Plan, width: int = 100) -> str:
    output = io.StringIO()
    print_report(plan, Console(file=output, width=width, highlight=False))
    return output.getvalue()


def section(plan: Plan, title: str) -> list[str]:
    """The words of each line of a section of the report."""
    lines = rendered(plan).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(title)) + 1
    length = next((n for n, line in enumerate(lines[start:]) if line and line[0] != " "), None)
    return [
        " ".join(line.split()) for line in lines[start : None if length is None else start + length]
    ]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_it_fits_its_columns_and_cuts_nothing(width: int) -> None:
    text = rendered(PIPELINE, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text


def test_the_schedule_is_told_in_words() -> None:
    told = "interleaved 1F1B: 8 stages, 2 on each rank; 32 microbatches; bubble 280 ms (7.0 %)"
    assert told in rendered(PIPELINE)
    assert "1F1B: 4 stages; 32 microbatches; bubble" in rendered(ONE_STAGE_A_RANK)
    filled = replace(PIPELINE, estimate=replace(ESTIMATE, bubble_s=0.0))
    assert "32 microbatches; no bubble" in rendered(filled)
    assert "schedule" not in rendered(sample_plan.PLAN)


def test_ranks_are_told_with_their_stages_and_figures() -> None:
    lines = section(PIPELINE, "Ranks of the pipeline")
    assert lines[:5] == [
        "rank stages runs",
        "0 0, 4 model.embed_tokens, layers 0-3, 16-19",
        "1 1, 5 layers 4-7, 20-23",
        "2 2, 6 layers 8-11, 24-27",
        "3 3, 7 layers 12-15, 28-31, to the end of the model",
    ]
    figures = [line.rstrip("█▏▎▍▌▋▊▉ ") for line in lines[6:11]]
    assert figures == [
        "rank compute forward backward bubble held memory",
        "0 3.20 s 36.0 ms 80.0 ms 280 ms 11 57.0 GiB 75 %",
        "1 3.20 s 36.0 ms 80.0 ms 280 ms 9 52.0 GiB 68 %",
        "2 3.04 s 36.0 ms 75.0 ms 440 ms 7 52.0 GiB 68 %",
        "3 3.36 s 40.0 ms 81.0 ms 120 ms 5 47.0 GiB 62 %",
    ]
    assert lines[11].startswith("4 devices a rank")


def test_neighbours_with_the_same_figures_are_one_row() -> None:
    ranks = (RANKS[0], RANKS[1], replace(RANKS[1], compute_s=3.2001), RANKS[3])
    plan = replace(ONE_STAGE_A_RANK, estimate=replace(ESTIMATE, stages=ranks))
    lines = section(plan, "Ranks of the pipeline")
    assert "1-2 1-2 layers 8-23 (8 blocks a rank)" in lines
    assert sum(line.startswith("1-2 3.20 s") for line in lines) == 1
    alike = replace(plan, estimate=replace(ESTIMATE, stages=(RANKS[0],) * 4))
    rows = section(alike, "Ranks of the pipeline")
    assert rows[1:4] == [
        "0 0 embed, layers 0-7", "1-2 1-2 layers 8-23 (8 blocks a rank)",
        "3 3 layers 24-31, to the end of the model",
    ]  # fmt: skip


def test_the_fullest_rank_is_named() -> None:
    assert "Memory on the fullest device, of pp rank 0" in rendered(PIPELINE)
    ranks = (RANKS[1], RANKS[2], RANKS[3], RANKS[0])
    last = replace(PIPELINE, estimate=replace(ESTIMATE, stages=ranks))
    assert "Memory on the fullest device, of pp rank 3" in rendered(last)
    assert "Memory on the fullest device\n" in rendered(sample_plan.PLAN)


def test_the_step_has_its_bubble() -> None:
    assert any(line.startswith("pipeline bubble 280 ms 7.0 %") for line in
               section(PIPELINE, "Time of one step"))  # fmt: skip


def test_axes_stand_from_the_outermost_to_neighbours() -> None:
    assert words.mesh(MeshPlan(pp=4, dp=2, tp=8)) == "pp 4 x dp 2 x tp 8"
    assert words.mesh(MeshPlan(pp=4, dp=2, tp=8, outermost="dp")) == "dp 2 x pp 4 x tp 8"


def test_recomputed_operators_are_told_by_variant() -> None:
    assert recompute(PIPELINE).splitlines() == [
        "run again in the backward:",
        "layers 0-1: all their operators (2 of 32 blocks)",
        "layers 2-7, 16-23: input_layernorm, self_attn (3 of 6), mlp.act_fn, mlp/mul"
        " (7 of 13 operators)",
        "layers 8-15, 24-31: input_layernorm/mul, add (2 of 13 operators)",
        "outside blocks: model.norm (2 of 4 operators)",
    ]
    assert recompute_share(PIPELINE) == "by operator"


def test_variants_that_recompute_the_same_are_one_line() -> None:
    same = replace(LATE_REGION, recomputed_operators=("mlp.act_fn/silu",))
    none = replace(EARLY_REGION, recomputed=(), recomputed_operators=())
    early = replace(same, blocks=LAYERS[:4])
    plan = replace(PIPELINE, regions=(early, replace(none, blocks=LAYERS[4:8]), same))
    assert recompute(plan).splitlines()[1:] == [
        "layers 0-3, 8-15, 24-31: mlp.act_fn (1 of 13 operators)",
        "layers 4-7: nothing",
    ]


def test_inputs_that_are_placed_anew_are_told() -> None:
    none = replace(LATE_REGION, recomputed_operators=())
    anew = replace(none, reconverted_inputs=(0,))
    assert recompute(replace(PIPELINE, regions=(none,))).startswith("none: all activations")
    assert recompute(replace(PIPELINE, regions=(anew,))).startswith("none, but what enters")


def test_many_recomputed_operators_are_counted() -> None:
    names = tuple(f"m{number}/mul" for number in range(9))
    region = replace(
        LATE_REGION, operators=dict.fromkeys((*names, "add"), "x"), recomputed_operators=names
    )
    told = recompute(replace(PIPELINE, regions=(region,)))
    assert told.endswith("m0, m1, m2, m3, m4, m5 and 3 more (9 of 10 operators)")


def test_placements_stand_once_where_all_variants_agree() -> None:
    assert list(parameter_rows(PIPELINE.regions))[3:] == [
        (f"model.layers.*.{name}", placement) for name, placement in EARLY_REGION.parameters.items()
    ]
    other = {**LATE_REGION.parameters, "mlp.down_proj.weight": "Replicate()"}
    rows = dict(parameter_rows((ROOT, EARLY_REGION, replace(LATE_REGION, parameters=other))))
    assert rows["model.layers.*.mlp.gate_proj.weight"] == "Shard(0)"
    assert rows["model.layers.{0-7, 16-23}.mlp.down_proj.weight"] == "Shard(1)"
    assert rows["model.layers.{8-15, 24-31}.mlp.down_proj.weight"] == "Replicate()"
    assert "model.layers.*.mlp.down_proj.weight" not in rows


def test_blocks_of_several_stacks_keep_their_paths() -> None:
    every = ("encoder.h.0", "encoder.h.1", "decoder.h.0", "pooler")
    assert named_blocks(every, every) == "encoder.h 0-1, decoder.h 0, pooler"
    assert named_blocks(("encoder.h.1",), every[:2]) == "h 1"


@settings(deadline=None, max_examples=50)
@given(st.lists(st.sampled_from(LAYERS), unique=True, min_size=1))
def test_blocks_in_words_name_every_block_once(blocks: list[str]) -> None:
    told = named_blocks(blocks, LAYERS).removeprefix("layers ")
    found = []
    for run in told.split(", "):
        first, _, last = run.partition("-")
        found += [f"model.layers.{index}" for index in range(int(first), int(last or first) + 1)]
    assert sorted(found) == sorted(blocks)


def test_replicas_are_told_in_words() -> None:
    hybrid = replace(sample_plan.PLAN, zero=3, replicas=2)
    told = " ".join(rendered(hybrid).split())
    assert "dp 4 x tp 2, ZeRO 3 in 2 replicas" in told
    assert (
        "stage 3 in 2 replicas (hybrid sharding): weights, gradients and optimizer state are"
        in told
    )
    assert "split over 2 of the 4 dp ranks" in told


def test_higher_zero_stages_do_in_a_pipeline_what_stage_1_does() -> None:
    one, three = (words.zero(replace(PIPELINE, zero=stage)) for stage in (1, 3))
    assert three.removeprefix("stage 3") == one.removeprefix("stage 1")
    assert "gathered for every use" in words.zero(replace(sample_plan.PLAN, zero=3))


def test_other_plans_stand_with_schedule_and_replicas() -> None:
    lines = section(PIPELINE, "Against other plans")
    assert lines[:8] == [
        "plan pp x dp x tp ZeRO microb. step memory recompute",
        "this plan 4 x 2 x 2 1 32 4.00 s 57.0 GiB by operator",
        "interleaved x2",
        "FSDP (ZeRO-3) 1 x 16 x 1 3 4 4.60 s 40.0 GiB full",
        "2 replicas",
        "zero bubble 4 x 2 x 2 1 32 3.90 s 80.0 GiB 16 of 32",
        "zero bubble x2",
        "dp outermost",
    ]
    assert "plan dp x tp ZeRO" in section(sample_plan.PLAN, "Against other plans")[0]


def test_pins_and_what_cannot_run_are_assumptions() -> None:
    text = rendered(PIPELINE)
    assert "pp=4, schedule=interleaved_1f1b" in text
    assert "what cannot run yet may be chosen" in text
    assert "Warning: pipelines are planned only; they cannot run yet" in text
    assert "planned only" not in rendered(sample_plan.PLAN)


def test_the_summary_has_the_same_facts() -> None:
    record = json.loads(json.dumps(summary(PIPELINE), allow_nan=False))
    assert record["schedule"] == "interleaved_1f1b"
    assert (record["stages_per_rank"], record["replicas"]) == (2, 1)
    assert len(record["stages"]) == len(STAGES)
    assert record["stages"][4] == {
        "rank": 0, "first": "model.layers.16", "blocks": list(LAYERS[16:20]),
    }  # fmt: skip
    ranks = record["estimate"]["stages"]
    assert [rank["memory"]["total"] // GIB for rank in ranks] == [57, 52, 52, 47]
    assert (ranks[3]["forward_s"], ranks[3]["backward_s"]) == (0.04, 0.081)
    assert (ranks[3]["bubble_s"], ranks[3]["held_microbatches"]) == (0.12, 5)
    again = record["recompute"]
    assert (again["mode"], again["recomputed_blocks"], again["blocks"]) == ("partial", 2, 32)
    assert [(len(part["blocks"]), len(part["operators"])) for part in again["operators"]] == [
        (0, 2), (14, 7), (16, 2),
    ]  # fmt: skip
    assert record["alternatives"][1]["stages_per_rank"] == ALTERNATIVES[1].stages_per_rank
    assert record["alternatives"][1]["mesh"]["outermost"] == "dp"


def test_the_summary_says_what_was_asked_for() -> None:
    asked = replace(
        PIPELINE.job, memory_limit_bytes=70 * GIB, placements=(("*.attn.*", "Shard(0)"),)
    )
    job = summary(replace(PIPELINE, job=asked))["job"]
    assert job["pins"] == {"pp": 4, "schedule": "interleaved_1f1b"}
    assert job["placements"] == {"*.attn.*": "Shard(0)"}
    assert (job["memory_limit_bytes"], job["memory_margin"]) == (70 * GIB, 0.05)
    assert (job["planned_only"], job["nodes"], job["seq_len"]) == (True, 2, 8192)
    placed = {"parameter": "lm_head.weight", "placement": "Shard(0)"}
    assert placed in summary(PIPELINE)["placements"]


def test_a_region_without_blocks_has_no_prefix() -> None:
    root = RegionPlan(
        kind="", blocks=(), recomputed=(), parameters={"w": "Shard(0)"}, operators={}, inputs=()
    )
    assert list(parameter_rows((root,))) == [("w", "Shard(0)")]
