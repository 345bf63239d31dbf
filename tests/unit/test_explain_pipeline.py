"""Explanations of plans with pipelines: pins of alternatives, questions, and how they are shown."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from autoplan.errors import PlanError
from autoplan.explanation import Explanation, Question, Rival, WhyNot, pins_of, variant_of
from autoplan.job import Job, Pins
from autoplan.report.explanation import print_explanation
from autoplan.request import check_pins, make_pins, make_question
from tests.unit import sample_plan
from tests.unit.sample_pipeline import ALTERNATIVES, GIB, PIPELINE


def shown(found: Explanation) -> str:
    output = io.StringIO()
    print_explanation(found, Console(file=output, width=100, highlight=False))
    return " ".join(output.getvalue().split())


def test_pins_of_an_alternative_say_its_pipeline_and_replicas() -> None:
    fsdp, zero_bubble = ALTERNATIVES
    assert pins_of(fsdp, PIPELINE.job) == {
        "pp": 1, "dp": 16, "tp": 1, "zero": 3, "microbatch": 1, "recompute": "full",
        "schedule": "none", "stages_per_rank": 1, "replicas": 2, "outermost": "pp",
    }  # fmt: skip
    assert pins_of(zero_bubble, PIPELINE.job) == {
        "pp": 4, "dp": 2, "tp": 2, "zero": 1, "microbatch": 1,
        "schedule": "zero_bubble", "stages_per_rank": 2, "replicas": 1, "outermost": "dp",
    }  # fmt: skip


def test_pins_of_an_alternative_can_be_asked_for() -> None:
    free: Job = replace(PIPELINE.job, pins=Pins())
    for other in ALTERNATIVES:
        check_pins(replace(free, pins=make_pins(pins_of(other, free))))


def test_pins_say_all_that_pins_can() -> None:
    (ddp, _) = sample_plan.ALTERNATIVES
    assert pins_of(ddp, sample_plan.PLAN.job) == {
        "pp": 1, "dp": 8, "tp": 1, "zero": 0, "microbatch": 8, "recompute": "none",
        "schedule": "none", "stages_per_rank": 1, "replicas": 1, "outermost": "pp",
    }  # fmt: skip


@pytest.mark.parametrize("words", ["by operator", "9 of 43 operators"])
def test_recompute_that_pins_cannot_say_is_left_free(words: str) -> None:
    other = replace(ALTERNATIVES[0], recompute=words)
    assert "recompute" not in pins_of(other, PIPELINE.job)


def test_a_variant_is_the_plan_in_figures() -> None:
    variant = variant_of(PIPELINE)
    assert (variant.schedule, variant.stages_per_rank, variant.replicas) == (
        "interleaved_1f1b", 2, 1,
    )  # fmt: skip
    assert (variant.recomputed_blocks, variant.blocks) == (2, 32)
    assert variant.recomputes_operators
    assert variant.memory.total == 57 * GIB
    plain = variant_of(sample_plan.PLAN)
    assert (plain.schedule, plain.stages_per_rank, plain.recomputes_operators) == ("none", 1, False)


def test_questions_are_pins_and_placements() -> None:
    asked = make_question({"pp": "4", "place:lm_head.*": "Shard(dim=0)", "schedule": "1f1b"})
    assert asked == Question(
        pins=Pins(pp=4, schedule="1f1b"), placements=(("lm_head.*", "Shard(0)"),)
    )
    assert make_question(Pins(pp=2)) == Question(pins=Pins(pp=2))
    assert make_question({}) is None
    assert make_question(None) is None
    with pytest.raises(PlanError, match=r"expected Replicate\(\) or Shard\(dim\)"):
        make_question({"place:w": "Partial(sum)"})
    with pytest.raises(PlanError, match="unknown pin 'placed:w'"):
        make_question({"placed:w": "Shard(0)"})


def test_pipelines_are_explained_with_their_schedules() -> None:
    base = variant_of(PIPELINE)
    slower = replace(
        base, schedule="1f1b", stages_per_rank=1, recomputes_operators=False,
        estimate=replace(base.estimate, step_s=4.4, bubble_s=0.68),
    )  # fmt: skip
    answer = WhyNot(
        pins={"schedule": "1f1b", "place:lm_head.*": "Replicate()"},
        verdict="slower",
        reason="",
        plan=slower,
        step_difference_s=0.4,
        time_difference_s={
            "compute_s": 0.0, "exposed_comm_s": 0.0, "bubble_s": 0.4, "optimizer_s": 0.0,
        },
        memory_difference_bytes={"activations": 0},
    )  # fmt: skip
    rivals = tuple(
        Rival(alternative=other, pins=pins_of(other, PIPELINE.job)) for other in ALTERNATIVES
    )
    text = shown(
        Explanation(
            model="llama3-8b",
            cluster="dgx-h100",
            plan=base,
            is_best=True,
            lower_bound_s=3.88,
            memory=None,
            rivals=rivals,
            why_not=answer,
        )
    )
    assert (
        "pp 4 x dp 2 x tp 2, interleaved x2, ZeRO 1, 32 microbatches of 1, recomputing by operator"
    ) in text
    assert "Why not schedule=1f1b, place:lm_head.*=Replicate()" in text
    assert "pp 4 x dp 2 x tp 2, 1F1B, ZeRO 1, 32 microbatches of 1, 2 of 32 blocks" in text
    assert "pipeline bubble 280 ms 680 ms +400 ms" in text
    assert "--pin schedule=zero_bubble --pin stages_per_rank=2" in text
