"""Critical paths: exact for their own times, lower bounds for all others."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.critical_path import critical_path
from cost_models.pipeline import StageTimes, simulate
from cost_models.schedules import PipelineShape, ScheduleError
from tests.unit.pipeline_cases import SCHEDULES, shapes

NAMES = (
    "forward_s",
    "backward_input_s",
    "backward_weight_s",
    "send_forward_s",
    "send_backward_s",
)
SECONDS = st.sampled_from([0.0, 0.0, 0.3, 1.0, 1.7, 5.0]) | st.floats(0, 3)


def last_backward_end_s(shape, stages):
    time = simulate(shape.schedule, stages, shape.microbatches, shape.ranks, blocking_sends=False)
    return time.last_backward_end_s


@st.composite
def stages_of(draw, shape):
    """All of them at random, or equal, or none but messages, or all of 0 s."""
    names = draw(st.sampled_from([NAMES, NAMES, NAMES, NAMES[:3], NAMES[3:], ()]))
    different = draw(st.sampled_from([1, shape.stages]))
    drawn = [
        StageTimes(**{name: draw(SECONDS) if name in names else 0.0 for name in NAMES})
        for _ in range(different)
    ]
    return drawn * (shape.stages // different)


@st.composite
def drawn(draw):
    shape = draw(shapes(max_microbatches=20))
    return shape, draw(stages_of(shape))


@settings(deadline=None, max_examples=300)
@given(case=drawn())
def test_as_long_as_the_simulation(case):
    shape, stages = case
    ends = last_backward_end_s(shape, stages)
    path = critical_path(shape, stages)
    assert path.length(stages) == pytest.approx(max(ends), rel=1e-9)
    assert ends[path.ends_at] == pytest.approx(max(ends), rel=1e-9)


@settings(deadline=None, max_examples=300)
@given(case=drawn(), data=st.data())
def test_no_longer_than_the_simulation_of_other_times(case, data):
    shape, stages = case
    path = critical_path(shape, stages)
    others = data.draw(stages_of(shape))
    end_s = last_backward_end_s(shape, others)[path.ends_at]
    assert path.length(others) <= end_s * (1 + 1e-9)


@settings(deadline=None, max_examples=150)
@given(case=drawn(), data=st.data())
def test_it_ends_where_backward_and_tail_end_last(case, data):
    shape, stages = case
    tails_s = [data.draw(SECONDS) for _ in stages]
    ends = last_backward_end_s(shape, stages)
    path = critical_path(shape, stages, tails_s)
    step_s = max(end_s + tail_s for end_s, tail_s in zip(ends, tails_s, strict=True))
    assert ends[path.ends_at] + tails_s[path.ends_at] == pytest.approx(step_s, rel=1e-9)
    assert path.length(stages) == pytest.approx(ends[path.ends_at], rel=1e-9)


@pytest.mark.parametrize("end", range(8))
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_path_ends_at_every_stage(schedule, end):
    """The tail of one stage outlasts all else."""
    count = 8 if schedule in ("gpipe", "1f1b") else 16
    shape = PipelineShape(schedule=schedule, ranks=8, stages=count, microbatches=16)
    stages = [StageTimes(**{name: 2.0 ** (s % 3 - i) for i, name in enumerate(NAMES)})
              for s in range(count)]  # fmt: skip
    for stage in range(end, count, 8):
        path = critical_path(shape, stages, [1e6 * (s == stage) for s in range(count)])
        assert path.ends_at == stage
        end_s = last_backward_end_s(shape, stages)[stage]
        assert path.length(stages) == pytest.approx(end_s, rel=1e-12)
        assert path.backward_weight[stage] > 0


@pytest.mark.parametrize("send_s", [0.1, 4.0])
@pytest.mark.parametrize(
    ("schedule", "ranks", "per_rank", "microbatches"),
    [
        ("gpipe", 32, 1, 100),
        ("1f1b", 16, 1, 512),
        ("interleaved_1f1b", 16, 8, 64),
        ("interleaved_1f1b", 8, 4, 45),
        ("zero_bubble", 64, 2, 64),
        ("zbv", 16, 2, 64),
    ],
)
def test_at_size(schedule, ranks, per_rank, microbatches, send_s):
    draw = random.Random(0).uniform
    stages = [
        StageTimes(
            forward_s=draw(0.8, 1.2),
            backward_input_s=draw(0.8, 1.2),
            backward_weight_s=draw(0.6, 1.0),
            send_forward_s=draw(0, send_s),
            send_backward_s=draw(0, send_s),
        )
        for _ in range(ranks * per_rank)
    ]
    shape = PipelineShape(
        schedule=schedule, ranks=ranks, stages=len(stages), microbatches=microbatches
    )
    end_s = max(last_backward_end_s(shape, stages))
    assert critical_path(shape, stages).length(stages) == pytest.approx(end_s, rel=1e-9)


def test_one_slow_stage_is_most_of_the_path():
    """1F1B: up to its slowest stage, all its microbatches, and back; the stage behind it is done
    with the first microbatch before the second one's forward ends."""
    shape = PipelineShape(schedule="1f1b", ranks=4, stages=4, microbatches=10)
    stages = [
        StageTimes(forward_s=each_s, backward_input_s=each_s, backward_weight_s=each_s)
        for each_s in (1.0, 1.0, 9.0, 1.0)
    ]
    path = critical_path(shape, stages)
    assert path.ends_at == 0
    assert path.forward.tolist() == [1, 1, 10, 0]
    assert path.backward_input.tolist() == path.backward_weight.tolist() == [1, 1, 10, 0]
    assert path.forward_sends.tolist() == [1, 1, 0, 0]
    assert path.backward_sends.tolist() == [0, 1, 1, 0]


def test_messages_that_queue_are_the_path():
    """All microbatches' messages one after the other, behind the first forward."""
    shape = PipelineShape(schedule="gpipe", ranks=2, stages=2, microbatches=6)
    stages = [
        StageTimes(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0, send_forward_s=7.0)
    ] * 2
    path = critical_path(shape, stages)
    assert path.forward_sends.tolist() == [6, 0]
    assert path.forward.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("count", "tails_s", "forward_s"), [(3, None, 1.0), (4, [0.0], 1.0), (4, None, -1.0)]
)
def test_refusals(count, tails_s, forward_s):
    shape = PipelineShape(schedule="1f1b", ranks=4, stages=4, microbatches=4)
    stages = [StageTimes(forward_s=forward_s, backward_input_s=1, backward_weight_s=1)] * count
    with pytest.raises(ScheduleError, match=r"use 4 of each|use times of 0 s or more"):
        critical_path(shape, stages, tails_s)
