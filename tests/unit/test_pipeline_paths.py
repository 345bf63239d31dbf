"""Paths through schedules: never longer than the simulation, exact where stages are alike."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.pipeline import StageTimes, simulate
from cost_models.schedule_paths import paths
from cost_models.schedules import PipelineShape, rank_actions
from tests.unit.pipeline_cases import SCHEDULES, shapes

NAMES = (
    "forward_s",
    "backward_input_s",
    "backward_weight_s",
    "send_forward_s",
    "send_backward_s",
)
SECONDS = st.sampled_from([0.0, 0.0, 0.3, 1.0, 1.7, 5.0]) | st.floats(0, 3)


def uniform(stages, forward_s, input_s, weight_s, send_s=0.0):
    times = (forward_s, input_s, weight_s, send_s, send_s)
    return [StageTimes(**dict(zip(NAMES, times, strict=True)))] * stages


def simulated(shape, stages):
    return simulate(shape.schedule, stages, shape.microbatches, shape.ranks, blocking_sends=False)


def bound_s(shape, stages):
    """The longest base and extra together."""
    found = paths(shape)
    return found[0].base.length(stages) + max(path.extra.length(stages) for path in found)


def longest_s(shape, stages):
    return max(path.length(stages) for path in paths(shape))


def at_most(low, high):
    assert low <= high * (1 + 1e-9) + 1e-12


@st.composite
def drawn(draw):
    shape = draw(shapes(max_microbatches=20))
    stages = [StageTimes(**{name: draw(SECONDS) for name in NAMES}) for _ in range(shape.stages)]
    return shape, stages


@settings(deadline=None, max_examples=150)
@given(case=drawn())
def test_no_path_outlasts_the_backward_that_it_ends_at(case):
    shape, stages = case
    time = simulated(shape, stages)
    found = paths(shape)
    assert [path.rank for path in found] == list(range(shape.ranks))
    for path in found:
        at_most(path.length(stages), time.last_backward_end_s[path.ends_at])
        at_most(path.base.length(stages) + path.extra.length(stages), path.length(stages))
    at_most(bound_s(shape, stages), time.makespan_s)


@settings(deadline=None, max_examples=100)
@given(case=drawn(), data=st.data())
def test_what_follows_the_last_backward_adds_up(case, data):
    shape, stages = case
    tail_s = [data.draw(SECONDS) for _ in stages]
    ends = simulated(shape, stages).last_backward_end_s
    step_s = max(end_s + after_s for end_s, after_s in zip(ends, tail_s, strict=True))
    for path in paths(shape):
        bound = path.base.length(stages) + path.extra.length(stages) + tail_s[path.ends_at]
        at_most(bound, step_s)
    if shape.schedule != "zbv":
        at_most(bound_s(shape, stages) + tail_s[0], step_s)


@settings(deadline=None, max_examples=60)
@given(case=drawn())
def test_extra_is_of_own_stages_and_base_of_all(case):
    shape, _ = case
    exact = shape.schedule != "zbv" and not (
        shape.schedule == "zero_bubble" and shape.stages > shape.ranks
    )
    found = paths(shape)
    for path in found:
        assert path.base is found[0].base
        for name in (
            "forward",
            "backward_input",
            "backward_weight",
            "forward_sends",
            "backward_sends",
        ):
            whole, base, extra = (getattr(of, name) for of in (path, path.base, path.extra))
            assert (extra >= 0).all()
            assert not any(extra[s] for s in range(shape.stages) if shape.rank_of(s) != path.rank)
            assert (base + extra == whole).all() if exact else (base + extra <= whole).all()


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"])
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 4), (4, 12), (8, 8), (8, 32)])
def test_base_is_every_stage_and_message_once(schedule, ranks, microbatches):
    count = ranks * (2 if schedule == "interleaved_1f1b" else 1)
    stages = [
        StageTimes(**{name: 10.0**s + 0.1 * i for i, name in enumerate(NAMES)})
        for s in range(count)
    ]
    shape = PipelineShape(schedule=schedule, ranks=ranks, stages=count, microbatches=microbatches)
    weighted = stages[:1] if schedule == "zero_bubble" else stages
    once = sum(stage.forward_s + stage.backward_input_s for stage in stages)
    once += sum(stage.backward_weight_s for stage in weighted)
    once += sum(stage.send_forward_s for stage in stages[:-1])
    once += sum(stage.send_backward_s for stage in stages[1:])
    assert paths(shape)[0].base.length(stages) == pytest.approx(once, rel=1e-12)


@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 3), (2, 5), (4, 2), (5, 1), (4, 13)])
def test_extra_of_one_forward_one_backward(ranks, microbatches):
    """All but one microbatch, less the forwards that rank r runs before its first backward."""
    stages = [
        StageTimes(forward_s=1 + r, backward_input_s=2 * r, backward_weight_s=0.1)
        for r in range(ranks)
    ]
    shape = PipelineShape(schedule="1f1b", ranks=ranks, stages=ranks, microbatches=microbatches)
    found = paths(shape)
    whole = [path.base.length(stages) + path.extra.length(stages) for path in found]
    once = sum(1 + r + 2 * r + 0.1 for r in range(ranks))
    expected = [
        once
        + (microbatches - 1) * (1 + r + 2 * r + 0.1)
        - min(microbatches - 1, ranks - 1 - r) * (1 + r)
        for r in range(ranks)
    ]
    assert whole == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 1), (2, 7), (4, 2), (5, 1), (16, 64)])
def test_fill_and_drain_exactly(schedule, ranks, microbatches):
    """(m + p - 1) (F + B), Narayanan et al. 2021, section 2.2.1."""
    stages = uniform(ranks, 1.0, 1.3, 0.8)
    shape = PipelineShape(schedule=schedule, ranks=ranks, stages=ranks, microbatches=microbatches)
    assert bound_s(shape, stages) == pytest.approx((microbatches + ranks - 1) * 3.1)


@pytest.mark.parametrize("send_s", [0.0, 0.1])
@pytest.mark.parametrize("per_rank", [1, 2, 3])
@pytest.mark.parametrize(("ranks", "rounds"), [(1, 3), (2, 1), (4, 2), (8, 4)])
def test_interleaving_exactly(ranks, rounds, per_rank, send_s):
    """m v (F + B) + (p - 1) (F + B), section 2.2.2, and as simulated with messages, where each rank
    has several stages."""
    shape = PipelineShape(
        schedule="interleaved_1f1b",
        ranks=ranks,
        stages=ranks * per_rank,
        microbatches=ranks * rounds,
    )
    stages = uniform(shape.stages, 1.0, 1.3, 0.8)
    expected = (ranks * rounds * per_rank + ranks - 1) * 3.1
    assert bound_s(shape, stages) == pytest.approx(expected)
    stages = uniform(shape.stages, 1.0, 1.3, 0.8, send_s)
    at_most(bound_s(shape, stages), simulated(shape, stages).makespan_s)


@pytest.mark.parametrize(("input_s", "weight_s"), [(1.0, 1.0), (1.3, 0.8)])
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (4, 40), (8, 16)])
def test_zero_bubble_exactly(ranks, microbatches, input_s, weight_s):
    """Qi et al. 2023, table 1."""
    stages = uniform(ranks, 1.0, input_s, weight_s)
    shape = PipelineShape(
        schedule="zero_bubble", ranks=ranks, stages=ranks, microbatches=microbatches
    )
    bubble = (ranks - 1) * (1.0 + input_s - weight_s)
    expected = microbatches * (1 + input_s + weight_s) + bubble
    assert bound_s(shape, stages) == pytest.approx(expected)


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (8, 16)])
def test_zero_bubble_v_exactly(ranks, microbatches):
    """Qi et al. 2023, section 6; base and extra leave out I of all other ranks but 0."""
    stages = uniform(2 * ranks, 1.0, 1.0, 1.0)
    shape = PipelineShape(schedule="zbv", ranks=ranks, stages=2 * ranks, microbatches=microbatches)
    assert longest_s(shape, stages) == pytest.approx(6 * microbatches + ranks - 1)
    assert bound_s(shape, stages) == pytest.approx(6 * microbatches + 1)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("microbatches", [1, 3, 8, 24])
def test_counts_are_those_of_a_walk(schedule, microbatches):
    """The walk by action: along the chain, in the rank's order, along the chain."""
    ranks = min(4, microbatches)
    count = ranks * (1 if schedule in ("gpipe", "1f1b") else 2)
    if schedule in ("interleaved_1f1b", "zero_bubble"):
        microbatches -= microbatches % ranks
    shape = PipelineShape(schedule=schedule, ranks=ranks, stages=count, microbatches=microbatches)
    for path in paths(shape):
        walked = walk(shape, path.rank)
        assert len(walked) == len(set(walked))
        counted = Counter((kind, stage) for kind, stage, _ in walked)
        for stage in range(count):
            assert path.forward[stage] == counted["F", stage]
            inputs, weights = counted["B", stage], counted["B", stage]
            if shape.splits_backward:
                inputs, weights = counted["I", stage], counted["W", stage]
            assert (path.backward_input[stage], path.backward_weight[stage]) == (inputs, weights)


def walk(shape, rank):
    """The path's actions, found by following the orders of ``rank_actions``."""
    actions = [tuple(action) for action in rank_actions(shape, rank)]
    kind = "I" if shape.splits_backward else "B"
    last, end = shape.stages - 1, shape.microbatches - 1
    back = next(i for i, action in enumerate(actions) if action[0] == kind)
    top = actions[back][1]
    forward = [("F", stage, 0) for stage in range(shape.stages)]
    if shape.schedule == "gpipe":
        forward = [("F", stage, 0) for stage in range(rank)]
        forward += actions[:back] + [("F", stage, end) for stage in range(rank + 1, shape.stages)]
    chain = forward + [(kind, stage, 0) for stage in range(last, top, -1)]
    if shape.schedule == "zbv":
        return chain + actions[back:]
    leaves = (kind, top if kind == "B" else rank, end)
    chain += actions[back : actions.index(leaves) + 1]
    chain += [(kind, stage, end) for stage in range(leaves[1] - 1, -1, -1)]
    return chain + ([("W", 0, end)] if kind == "I" else [])
