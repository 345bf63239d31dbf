"""The step as simulated from a plan: against a step by hand, the other simulation, and counts."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.plan import MeshPlan, Plan, StageEstimate, StagePlan, StageTiming
from autoplan.report.held_memory import held_memory
from autoplan.report.step import Step, shape_of, step_of
from autoplan.report.trace import COMPUTE, trace
from cost_models.pipeline import simulate
from cost_models.schedule_memory import peak_held
from cost_models.schedule_times import StageTimes
from tests.unit.sample_pipeline import PIPELINE
from tests.unit.sample_timed import GIB, HEAD_S, STEP_S, TIMED, memory

seconds = st.floats(1e-4, 1e-1)


@st.composite
def timed_plans(draw: Any) -> Plan:
    """Plans of all schedules with any seconds of their stages."""
    ranks = draw(st.integers(1, 4))
    schedule = draw(st.sampled_from(["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble", "zbv"]))
    per_rank = {"gpipe": 1, "1f1b": 1, "zbv": 2}.get(schedule) or draw(st.integers(1, 3))
    if ranks == 1:
        schedule, per_rank = "1f1b", 1
    microbatches = ranks * draw(st.integers(1, 3))
    timings = tuple(draw(timing()) for _ in range(ranks * per_rank))
    plan = replace(
        TIMED,
        mesh=MeshPlan(pp=ranks, dp=2, tp=2),
        num_microbatches=microbatches,
        schedule="none" if ranks == 1 else schedule,
        stages=() if ranks == 1 else _stages(ranks, len(timings)),
    )
    shape = shape_of(plan)
    peaks = peak_held(shape, [each.kept_bytes for each in timings], until_weight=True)
    estimates = tuple(
        StageEstimate(
            devices=4, compute_s=1.0, memory=replace(memory(0, 1), activations=int(peak) + GIB)
        )
        for peak in peaks
    )
    head_s = draw(st.sampled_from([0.0, 0.01]))
    estimate = replace(TIMED.estimate, head_s=head_s, timings=timings, stages=estimates)
    return replace(plan, estimate=estimate)


def _stages(ranks: int, count: int) -> tuple[StagePlan, ...]:
    return tuple(
        StagePlan(rank=number % ranks, first=f"s{number}", blocks=()) for number in range(count)
    )


def timing() -> st.SearchStrategy[StageTiming]:
    return st.builds(
        StageTiming,
        times=st.builds(
            StageTimes,
            forward_s=seconds,
            backward_input_s=seconds,
            backward_weight_s=seconds,
            send_forward_s=st.floats(0, 1e-2),
            send_backward_s=st.floats(0, 1e-2),
        ),
        forward_messages_s=st.floats(0, 1e-4),
        backward_messages_s=st.floats(0, 1e-4),
        tail_s=st.floats(0, 1e-2),
        optimizer_s=st.floats(0, 1e-2),
        kept_bytes=st.integers(0, 2**32),
    )


def stepped(plan: Plan) -> Step:
    step = step_of(plan)
    assert step is not None
    return step


def test_a_step_is_as_it_is_by_hand() -> None:
    first, last = stepped(TIMED).spans
    assert [(span.kind, span.microbatch) for span in first] == [
        ("head", None), ("F", 0), ("F", 1), ("B", 0), ("F", 2), ("B", 1), ("F", 3), ("B", 2),
        ("B", 3), ("tail", None), ("optimizer", None),
    ]  # fmt: skip
    stops = [0.002, 0.012, 0.022, 0.064, 0.074, 0.094, 0.104, 0.126, 0.156, 0.159, STEP_S]
    assert [span.stop_s for span in first] == pytest.approx(stops)
    starts = [0, 0.013, 0.023, 0.043, 0.053, 0.075, 0.085, 0.105, 0.115, 0.135, 0.138]
    assert [span.start_s for span in last] == pytest.approx(starts)
    assert stepped(TIMED).stop_s == pytest.approx(STEP_S)


@settings(deadline=None, max_examples=60)
@given(timed_plans())
def test_a_step_ends_when_the_planners_simulation_does(plan: Plan) -> None:
    step, timings = stepped(plan), plan.estimate.timings
    found = simulate(
        step.shape.schedule,
        [each.times for each in timings],
        plan.num_microbatches,
        plan.mesh.pp,
        blocking_sends=False,
    )
    expected = []
    for rank, spans in enumerate(step.spans):
        own = [n for n in range(step.shape.stages) if step.shape.rank_of(n) == rank]
        ends_s = [found.last_backward_end_s[n] + timings[n].tail_s for n in own]
        optimizer_s = sum(timings[n].optimizer_s for n in own)
        expected.append(plan.estimate.head_s + max(ends_s) + optimizer_s)
        assert sum(span.seconds for span in spans) <= spans[-1].stop_s * (1 + 1e-9)
    ends = [spans[-1].stop_s for spans in step.spans]
    assert ends == pytest.approx(expected, rel=1e-9)


@settings(deadline=None, max_examples=60)
@given(timed_plans())
def test_actions_come_once_and_wait_for_what_they_need(plan: Plan) -> None:
    step, timings = stepped(plan), plan.estimate.timings
    at = {
        (span.kind, span.stage, span.microbatch): span
        for spans in step.spans
        for span in spans
        if span.stage is not None
    }
    kinds = "FIW" if step.shape.splits_backward else "FB"
    backward = kinds[1]
    assert len(at) == len(kinds) * step.shape.stages * plan.num_microbatches
    for (kind, stage, microbatch), span in at.items():
        assert stage is not None
        earlier = [] if kind == "F" else [at["F", stage, microbatch].stop_s]
        if kind == "F" and stage > 0:
            earlier.append(at["F", stage - 1, microbatch].stop_s)
        if kind == backward and stage < step.shape.stages - 1:
            earlier.append(at[backward, stage + 1, microbatch].stop_s)
        assert all(stop_s <= span.start_s + 1e-12 for stop_s in earlier)
    for spans in step.spans:
        for before, after in pairwise(spans):
            assert before.stop_s <= after.start_s + 1e-12
    for sent in step.deliveries:
        kind, to = ("F", sent.stage + 1) if sent.to_next else (backward, sent.stage - 1)
        times = timings[sent.stage].times
        message_s = times.send_forward_s if sent.to_next else times.send_backward_s
        assert sent.stop_s - sent.start_s == pytest.approx(message_s, abs=1e-12)
        assert at[kind, sent.stage, sent.microbatch].stop_s <= sent.start_s + 1e-12
        assert sent.stop_s <= at[kind, to, sent.microbatch].start_s + 1e-12


@settings(deadline=None, max_examples=40)
@given(timed_plans())
def test_memory_rises_to_the_peak_of_the_plan_and_falls_to_nothing(plan: Plan) -> None:
    step = stepped(plan)
    for rank, estimate in enumerate(plan.estimate.stages):
        held = held_memory(plan, step, rank)
        assert held.most_bytes + held.passing_bytes == estimate.memory.total
        assert held.moments[0][0] == 0.0
        assert held.moments[-1][1] == 0
        assert min(nbytes for _, nbytes in held.moments) >= 0


def test_memory_by_hand() -> None:
    step = stepped(TIMED)
    first, last = (held_memory(TIMED, step, rank) for rank in (0, 1))
    assert [(round(at_s, 6), nbytes // (5 * GIB)) for at_s, nbytes in first.moments] == [
        (0, 0), (0.002, 0), (0.012, 1), (0.022, 2), (0.044, 2), (0.064, 1), (0.074, 2), (0.094, 1),
        (0.104, 2), (0.106, 2), (0.126, 1), (0.136, 1), (0.156, 0),
    ]  # fmt: skip
    assert max(nbytes for _, nbytes in last.moments) == 5 * GIB
    assert (first.always_bytes, last.always_bytes) == (21 * GIB // 2, 19 * GIB // 2)
    assert (first.passing_bytes, last.passing_bytes) == (3 * GIB // 2, 5 * GIB // 2)


def test_where_activations_are_gone_at_the_worst_moment() -> None:
    stage = replace(TIMED.estimate.stages[0], memory=memory(1, 30))
    estimate = replace(TIMED.estimate, stages=(stage, TIMED.estimate.stages[1]))
    plan = replace(TIMED, estimate=estimate)
    held = held_memory(plan, stepped(plan), 0)
    assert held.most_activations_bytes == 10 * GIB
    assert held.always_bytes + held.passing_bytes + GIB == stage.memory.total


def test_older_plan_files_have_no_step() -> None:
    assert step_of(PIPELINE) is None


@settings(deadline=None, max_examples=40)
@given(timed_plans())
def test_events_of_a_track_follow_one_another_or_nest(plan: Plan) -> None:
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in trace(plan)["traceEvents"]:
        if event["ph"] == "X":
            start = round(1000 * event["ts"])
            stop = start + round(1000 * event["dur"])
            assert 0 <= start <= stop
            tracks.setdefault((event["pid"], event["tid"]), []).append((start, stop))
    assert {rank for rank, track in tracks if track == COMPUTE} == set(range(plan.mesh.pp))
    for events in tracks.values():
        open_until: list[float] = [math.inf]
        for start, stop in sorted(events, key=lambda event: (event[0], -event[1])):
            while len(open_until) > 1 and start >= open_until[-1]:
                open_until.pop()
            assert stop <= open_until[-1]
            open_until.append(stop)


def test_traces_have_the_fields_of_the_format() -> None:
    document = trace(TIMED)
    assert set(document) == {"traceEvents", "displayTimeUnit", "otherData"}
    needed = {"M": {"args"}, "X": {"tid", "ts", "dur", "args"}, "C": {"ts", "args"}}
    for event in document["traceEvents"]:
        assert set(event) >= {"ph", "name", "pid"} | needed[event["ph"]]
        for name in ("ts", "dur"):
            assert isinstance(event.get(name, 0.0), int | float)
        assert isinstance(event["name"], str)
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())
    names = {e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"}
    assert names == {
        "compute", "messages over dp that show", "messages to the next stage",
        "messages to the stage before",
    }  # fmt: skip
    last = max(e["ts"] + e["dur"] for e in document["traceEvents"] if e["ph"] == "X")
    assert last == pytest.approx(1e6 * STEP_S)
    assert min(e["ts"] for e in document["traceEvents"] if e["name"].startswith("forward")) == (
        pytest.approx(1e6 * HEAD_S)
    )
