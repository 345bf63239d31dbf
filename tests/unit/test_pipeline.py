"""Pipeline simulation: closed forms, bounds, order in every cost, refusals."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.pipeline import StageTimes, simulate
from cost_models.schedule_memory import peak_held
from cost_models.schedules import PipelineShape, ScheduleError
from tests.unit.pipeline_cases import cases

SIZES = [(1, 1), (1, 5), (2, 2), (3, 7), (4, 4), (4, 8), (8, 32), (16, 16)]


def uniform(stages, forward_s=1.0, input_s=1.3, weight_s=0.8, send_s=0.0):
    return [
        StageTimes(
            forward_s=forward_s,
            backward_input_s=input_s,
            backward_weight_s=weight_s,
            send_forward_s=send_s,
            send_backward_s=send_s,
        )
    ] * stages


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("ranks", "microbatches"), [*SIZES, (4, 2), (5, 1)])
def test_equal_stages_fill_and_drain(schedule, ranks, microbatches, blocking):
    """GPipe and PipeDream-flush: (m + p - 1) (F + B), Narayanan et al. 2021, section 2.2.1."""
    time = simulate(schedule, uniform(ranks), microbatches, ranks, blocking_sends=blocking)
    assert time.makespan_s == pytest.approx((microbatches + ranks - 1) * 3.1)
    assert time.idle_s == pytest.approx((3.1 * (ranks - 1),) * ranks)
    assert time.last_backward_end_s[0] == pytest.approx(time.makespan_s)
    assert time.last_backward_end_s[-1] == pytest.approx(time.makespan_s - (ranks - 1) * 2.1)


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("per_rank", [1, 2, 3, 5])
@pytest.mark.parametrize(("ranks", "rounds"), [(1, 3), (2, 1), (2, 5), (4, 2), (4, 8), (8, 4)])
def test_interleaving_divides_the_bubble(ranks, rounds, per_rank, blocking):
    """Narayanan et al. 2021, section 2.2.2: the bubble is (p - 1) (f + b) of one small stage."""
    stages = uniform(ranks * per_rank)
    microbatches = ranks * rounds
    time = simulate("interleaved_1f1b", stages, microbatches, ranks, blocking_sends=blocking)
    expected = microbatches * per_rank * 3.1 + (ranks - 1) * 3.1
    assert time.makespan_s == pytest.approx(expected)


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (4, 40), (8, 16)])
@pytest.mark.parametrize(("input_s", "weight_s"), [(1.0, 1.0), (1.3, 0.8), (1.1, 0.9)])
def test_zero_bubble_h1(ranks, microbatches, input_s, weight_s):
    """Qi et al. 2023, table 1: a bubble of (p - 1) (T_F + T_B - T_W), activations of 1F1B."""
    stages = uniform(ranks, 1.0, input_s, weight_s)
    time = simulate("zero_bubble", stages, microbatches, ranks, blocking_sends=False)
    bubble = (ranks - 1) * (1.0 + input_s - weight_s)
    assert time.makespan_s == pytest.approx(microbatches * (1 + input_s + weight_s) + bubble)
    assert time.in_flight == tuple(range(ranks, 0, -1))
    assert max(time.in_flight_to_weight) == ranks


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (8, 16)])
def test_zero_bubble_v_has_no_bubble_between_equal_actions(ranks, microbatches):
    """Qi et al. 2023, section 6: ranks idle (p - 1) F only, before their first action or at the
    end, and hold at most 2 p halves of 1F1B's activations."""
    stages = uniform(2 * ranks, 1.0, 1.0, 1.0)
    time = simulate("zbv", stages, microbatches, ranks, blocking_sends=False)
    assert time.makespan_s == pytest.approx(6 * microbatches + ranks - 1)
    shape = PipelineShape(schedule="zbv", ranks=ranks, stages=2 * ranks, microbatches=microbatches)
    assert max(peak_held(shape, [1.0] * 2 * ranks)) == 2 * ranks


def test_activations_in_flight():
    """Narayanan et al. 2021, section 2.2: at most p under 1F1B, m under GPipe."""
    stages = uniform(4)
    one = simulate("1f1b", stages, 6, 4, blocking_sends=False)
    assert one.in_flight == one.in_flight_to_weight == (4, 3, 2, 1)
    assert simulate("1f1b", stages, 2, 4, blocking_sends=False).in_flight == (2, 2, 2, 1)
    assert simulate("gpipe", stages, 6, 4, blocking_sends=False).in_flight == (6, 6, 6, 6)


@pytest.mark.parametrize("per_rank", [1, 2, 3])
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 2), (4, 4), (4, 16), (8, 24)])
def test_interleaved_activations_of_a_rank(ranks, microbatches, per_rank):
    """Megatron's warmup of 2 (p - r - 1) + (v - 1) p forwards, and one more."""
    shape = PipelineShape(
        schedule="interleaved_1f1b",
        ranks=ranks,
        stages=ranks * per_rank,
        microbatches=microbatches,
    )
    assert peak_held(shape, [1.0] * shape.stages) == [
        min(microbatches * per_rank, 2 * (ranks - rank - 1) + (per_rank - 1) * ranks + 1)
        for rank in range(ranks)
    ]


@pytest.mark.parametrize(("schedule", "microbatches"), [("gpipe", 1), ("gpipe", 9), ("1f1b", 1)])
def test_fill_and_drain_wait_for_one_message_a_hop(schedule, microbatches):
    """Where no rank waits in between, only the p - 1 messages each way of one microbatch show."""
    stages = uniform(4, send_s=0.1)
    time = simulate(schedule, stages, microbatches, 4, blocking_sends=False)
    assert time.makespan_s == pytest.approx((microbatches + 3) * 3.1 + 6 * 0.1)


@settings(deadline=None, max_examples=100)
@given(
    send_s=st.floats(0, 100), compute_s=st.floats(0, 100), microbatches=st.integers(1, 12),
    ranks=st.integers(1, 12), blocking=st.booleans(),
)  # fmt: skip
def test_messages_of_one_direction_of_gpipe(send_s, compute_s, microbatches, ranks, blocking):
    """Huang et al. 2019, on equal stages: messages that block end each slot but the last; beside
    compute the hops of the first microbatch show, and what later messages outlast a slot."""
    stage = StageTimes(
        forward_s=compute_s, backward_input_s=0.0, backward_weight_s=0.0, send_forward_s=send_s
    )
    time = simulate("gpipe", [stage] * ranks, microbatches, ranks, blocking_sends=blocking)
    if blocking:
        shown_s = (microbatches + ranks - 2) * send_s
    else:
        shown_s = (ranks - 1) * send_s + (microbatches - 1) * max(0.0, send_s - compute_s)
    shown_s = 0.0 if ranks == 1 else shown_s
    assert time.makespan_s == pytest.approx((microbatches + ranks - 1) * compute_s + shown_s)


def test_a_link_slower_than_compute_sets_the_pace():
    stages = [
        StageTimes(forward_s=1, backward_input_s=1, backward_weight_s=0, send_forward_s=5),
        StageTimes(forward_s=1, backward_input_s=1, backward_weight_s=0),
    ]
    time = simulate("gpipe", stages, 10, 2, blocking_sends=False)
    assert time.makespan_s == 1 + 10 * 5 + 1 + 10 + 1  # messages in a row, then backwards
    assert time.exposed_send_s[1] == 5 + 9 * 4


@settings(deadline=None, max_examples=150)
@given(case=cases())
def test_bounds_and_balance(case):
    time = case.simulate()
    for rank in range(case.ranks):
        total = time.busy_s[rank] + time.idle_s[rank] + time.exposed_send_s[rank]
        assert total == pytest.approx(time.makespan_s, rel=1e-9, abs=1e-12)
        assert time.exposed_send_s[rank] >= 0
    once = sum(s.forward_s + s.backward_input_s for s in case.stages)
    once += sum(s.send_forward_s for s in case.crossing(1))
    once += sum(s.send_backward_s for s in case.crossing(-1))
    assert time.makespan_s >= max(once, *time.busy_s, 0.0) * (1 - 1e-9)
    assert max(time.last_backward_end_s) <= time.makespan_s * (1 + 1e-9)
    assert max(time.rank_end_s) == time.makespan_s
    if case.schedule in ("gpipe", "1f1b"):
        bottleneck = max(
            case.microbatches * own + before
            for own, before in zip(case.stage_s(), case.before_s(), strict=True)
        )
        assert time.makespan_s >= bottleneck * (1 - 1e-9)


@settings(deadline=None, max_examples=150)
@given(case=cases(), data=st.data())
def test_a_cost_that_grows_never_shortens_the_step(case, data):
    index = data.draw(st.integers(0, len(case.stages) - 1))
    name = data.draw(st.sampled_from(sorted(StageTimes.__dataclass_fields__)))
    grown = case.with_time(index, name, getattr(case.stages[index], name) + 0.5)
    before, after = case.simulate(), grown.simulate()
    assert after.makespan_s >= before.makespan_s * (1 - 1e-9)
    assert all(
        b >= a * (1 - 1e-9)
        for a, b in zip(before.last_backward_end_s, after.last_backward_end_s, strict=True)
    )


@pytest.mark.parametrize(
    ("schedule", "ranks", "stages", "microbatches", "words"),
    [
        ("2f2b", 2, 2, 2, "no schedule '2f2b'"),
        ("1f1b", 2, 4, 2, "interleaved_1f1b"),
        ("interleaved_1f1b", 4, 8, 9, "multiple of 4 microbatches"),
        ("zero_bubble", 4, 4, 9, "multiple of 4 microbatches"),
        ("interleaved_1f1b", 4, 6, 4, "multiple of the ranks"),
        ("zbv", 2, 2, 4, "two stages per rank"),
        ("1f1b", 2, 2, 0, "one or more"),
        ("1f1b", 0, 2, 4, "one or more"),
        ("1f1b", 2, 0, 4, "one or more"),
    ],
)
def test_what_a_schedule_cannot_run_is_refused(schedule, ranks, stages, microbatches, words):
    with pytest.raises(ScheduleError, match=words):
        simulate(schedule, uniform(stages), microbatches, ranks, blocking_sends=False)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_bad_times_are_refused(bad):
    stages = uniform(2)[:1] + uniform(1, forward_s=bad)
    with pytest.raises(ScheduleError, match="stage 1"):
        simulate("1f1b", stages, 4, 2, blocking_sends=False)


def test_blocking_sends_of_a_v_are_refused():
    with pytest.raises(ScheduleError, match="beside compute"):
        simulate("zbv", uniform(4), 4, 2, blocking_sends=True)
