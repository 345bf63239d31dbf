"""Sweeps over one size of a job, and the largest sizes that fit."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from autoplan.errors import InfeasibleError, PlanError
from autoplan.job import Job, ModelSource, Pins
from autoplan.plan import Plan
from autoplan.report.sweep import picture, print_sweep, summary
from autoplan.search.planner import plan_job
from autoplan.sizing.series import Series
from autoplan.sizing.sweeps import (
    Point,
    Sweep,
    largest,
    largest_microbatch,
    point_of,
    values_of,
)
from hardware_profiles.load import load
from tests.unit.sample_plan import ESTIMATE, PLAN
from tests.unit.search_graphs import gated_mlp

DGX = load("dgx-h100")
GRAPH = gated_mlp(4, width=512, hidden=2048, tokens=128, dtype="bfloat16")


def sample(nodes: int, batch: int, samples_per_s: float, name: str = "gpt2") -> Point:
    job = replace(
        PLAN.job, nodes=nodes, global_batch=batch, model=replace(PLAN.job.model, name=name)
    )
    estimate = replace(ESTIMATE, samples_per_s=samples_per_s, tokens_per_s=1024 * samples_per_s)
    return Point(job=job, plan=replace(PLAN, job=job, estimate=estimate))


def printed(found: Sweep) -> str:
    output = io.StringIO()
    print_sweep(found, Console(file=output, width=100, highlight=False))
    return output.getvalue()


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("8", (8,)),
        ("4,1,2", (1, 2, 4)),
        ("1..16", (1, 2, 4, 8, 16)),
        ("3..20,1", (1, 3, 6, 12)),
        ("4..4", (4,)),
    ],
)
def test_values_as_lists_and_doublings(text: str, values: tuple[int, ...]) -> None:
    assert values_of("--nodes", text) == values


@pytest.mark.parametrize("text", ["", "0", "a", "1,", "-2", "1..x", "1.5", "4..1", "0..4"])
def test_what_are_no_values_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match=r"--nodes .*: give numbers"):
        values_of("--nodes", text)


@settings(deadline=None, max_examples=200)
@given(
    limit=st.integers(0, 300),
    start=st.integers(1, 300),
    most=st.integers(1, 300),
    share=st.sampled_from([0.0, 1 / 16]),
)
def test_the_largest_that_fits_is_that_of_trying_all(
    limit: int, start: int, most: int, share: float
) -> None:
    def fits(size: int) -> Plan | None:
        assert 1 <= size <= most
        return PLAN if size <= limit else None

    found = largest(fits, start, most, share=share)
    truth = min(limit, most)
    if truth == 0:
        assert found is None
        return
    assert found is not None
    assert truth * (1 - share) - 1 <= found.value <= truth
    if share == 0:
        assert found.value == truth
    assert (found.bound is None) == (limit >= most)


def test_scaling_is_throughput_per_device_over_the_first() -> None:
    found = Sweep(over="nodes", points=(sample(1, 64, 256.0), sample(4, 64, 512.0)))
    assert [found.scaling(point) for point in found.points] == [1.0, 0.5]
    text = printed(found)
    assert "50 %" in text
    assert "learning rate" not in text


def test_a_growing_batch_has_the_note_on_the_learning_rate() -> None:
    found = Sweep(over="nodes", points=(sample(1, 64, 256.0), sample(4, 256, 1024.0)))
    assert "grows from 64 to 256" in " ".join(printed(found).split())


def test_points_without_a_plan_say_why() -> None:
    job = sample(3, 64, 1.0).job
    found = Sweep(
        over="nodes", points=(sample(1, 64, 256.0), Point(job=job, plan=None, reason="no mesh"))
    )
    assert "no mesh" in printed(found)
    record = json.loads(json.dumps(summary(found), allow_nan=False))
    assert record["points"][1]["reason"] == "no mesh"
    assert record["points"][0]["samples_per_s"] == 256.0


def test_the_picture_is_an_svg_in_which_names_are_text() -> None:
    points = (sample(1, 64, 256.0, "<script>"), sample(2, 64, 400.0, "<script>"))
    root = ET.fromstring(picture(Sweep(over="nodes", points=points)))
    shapes = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert shapes.count("rect") == 4
    assert "script" not in shapes


def test_a_point_is_the_plan_of_its_job() -> None:
    job = Job(
        model=ModelSource(kind="object", name="mlp", seq_len=128),
        cluster="dgx-h100",
        nodes=1,
        gpus_per_node=8,
        global_batch=64,
        pins=Pins(pp=1, tp=1),
    )
    series = Series(GRAPH, job, DGX)
    twice = replace(job, global_batch=128)
    assert point_of(series, job, None).plan is not None
    assert point_of(series, twice, None).plan == replace(
        plan_job(GRAPH, twice, DGX), alternatives=()
    )
    assert "divisible" in point_of(series, replace(job, global_batch=7), None).reason


def test_the_largest_microbatch_fits_and_the_next_one_does_not() -> None:
    job = Job(
        model=ModelSource(kind="object", name="mlp", seq_len=128),
        cluster="dgx-h100",
        nodes=1,
        gpus_per_node=8,
        global_batch=64,
        pins=Pins(pp=1, tp=1, zero=0),
        memory_limit_bytes=3 * 2**30,
    )
    series = Series(GRAPH, job, DGX)
    found = largest_microbatch(series, series.whole(job))
    assert found is not None
    assert found.bound == found.value + 1
    for size, fits in ((found.value, True), (found.bound, False)):
        pins = Pins(pp=1, dp=8, tp=1, microbatch=size)
        one = replace(job, global_batch=8 * size, pins=pins)
        if fits:
            plan = plan_job(GRAPH, one, DGX)
            assert plan.estimate.peak_memory_bytes <= plan.estimate.memory_limit_bytes
        else:
            with pytest.raises(InfeasibleError):
                plan_job(GRAPH, one, DGX)
