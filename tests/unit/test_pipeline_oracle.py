"""The simulations against small ones that are written otherwise."""

import functools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.pipeline import StageTimes, simulate
from cost_models.schedule_events import simulate_events
from cost_models.schedule_wavefront import simulate_wavefront
from cost_models.schedules import PipelineShape, rank_actions
from tests.unit.pipeline_cases import cases, shapes, stage_times


def longest_path_s(case):
    """Ends of all actions with messages beside compute, as longest paths by recursion."""
    shape, stages = case.shape, case.stages
    order = [rank_actions(shape, rank) for rank in range(case.ranks)]
    where = {
        action: (rank, i) for rank in range(case.ranks) for i, action in enumerate(order[rank])
    }
    back = "I" if shape.splits_backward else "B"

    def seconds(action):
        times = stages[action.stage]
        whole = times.backward_input_s + times.backward_weight_s
        return {
            "F": times.forward_s,
            "B": whole,
            "I": times.backward_input_s,
            "W": times.backward_weight_s,
        }[action.kind]

    def crosses(action):
        target = action.stage + (1 if action.kind == "F" else -1)
        in_model = 0 <= target < len(stages)
        return action.kind != "W" and in_model and shape.rank_of(target) != where[action][0]

    @functools.cache
    def end(action):
        rank, i = where[action]
        start = end(order[rank][i - 1]) if i else 0.0
        source = None
        if action.kind == "F" and action.stage > 0:
            source = action._replace(stage=action.stage - 1)
        if action.kind == back and action.stage < len(stages) - 1:
            source = action._replace(stage=action.stage + 1)
        if source is not None:
            start = max(start, arrival(source) if crosses(source) else end(source))
        return start + seconds(action)

    @functools.cache
    def arrival(action):
        rank, i = where[action]
        times = stages[action.stage]
        earlier = [a for a in order[rank][:i] if a.kind == action.kind and crosses(a)]
        leaves = max(end(action), arrival(earlier[-1]) if earlier else 0.0)
        return leaves + (times.send_forward_s if action.kind == "F" else times.send_backward_s)

    return {action: end(action) for action in where}


@settings(deadline=None, max_examples=150)
@given(case=cases(blocking=False, max_ranks=4, max_microbatches=9))
def test_messages_beside_compute(case):
    ends, time = longest_path_s(case), case.simulate()
    last = "W" if case.shape.splits_backward else "B"
    for rank in range(case.ranks):
        of_rank = [end for action, end in ends.items() if case.shape.rank_of(action.stage) == rank]
        assert time.rank_end_s[rank] == pytest.approx(max(of_rank), rel=1e-9)
    for stage in range(len(case.stages)):
        backwards = [end for a, end in ends.items() if a.kind == last and a.stage == stage]
        assert time.last_backward_end_s[stage] == pytest.approx(max(backwards), rel=1e-9)


SENDS = [0.1, 3.0]  # messages that never queue, and that do
ROWS = ["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"]


def assert_same_clocks(shape, stages):
    by_rows, by_events = simulate_wavefront(shape, stages), simulate_events(shape, stages)
    makespan_s = max(by_events.rank_end_s)
    for field in ("rank_end_s", "last_backward_end_s", "exposed_send_s"):
        expected = pytest.approx(getattr(by_events, field), rel=1e-9, abs=1e-9 * makespan_s)
        assert getattr(by_rows, field) == expected, field


@settings(deadline=None, max_examples=200)
@given(data=st.data(), shape=shapes(schedules=ROWS, max_ranks=7, max_microbatches=24))
def test_rows_of_ranks_equal_single_actions(data, shape):
    stages = data.draw(stage_times(shape.stages, longest_send_s=data.draw(st.sampled_from(SENDS))))
    assert_same_clocks(shape, stages)


@pytest.mark.parametrize(
    ("schedule", "ranks", "per_rank", "microbatches"),
    [
        ("1f1b", 64, 1, 512),
        ("interleaved_1f1b", 35, 3, 280),
        ("interleaved_1f1b", 8, 4, 45),
        ("zero_bubble", 32, 1, 256),
        ("gpipe", 32, 1, 300),
    ],
)
def test_rows_of_ranks_equal_single_actions_at_size(schedule, ranks, per_rank, microbatches):
    draw = random.Random(0).uniform
    stages = [
        StageTimes(
            forward_s=draw(0.8, 1.2),
            backward_input_s=draw(0.8, 1.2),
            backward_weight_s=draw(0.6, 1.0),
            send_forward_s=draw(0, 0.2),
            send_backward_s=draw(0, 0.2),
        )
        for _ in range(ranks * per_rank)
    ]
    shape = PipelineShape(
        schedule=schedule, ranks=ranks, stages=len(stages), microbatches=microbatches
    )
    assert_same_clocks(shape, stages)


def megatron_1f1b(rank, ranks, microbatches, stages):
    """What a rank does in ``forward_backward_pipelining_without_interleaving``: seconds of
    compute, or the messages of one wait, by (direction, stage that sends, microbatch)."""
    warmup = min(ranks - rank - 1, microbatches)
    forward_s = stages[rank].forward_s
    backward_s = stages[rank].backward_input_s + stages[rank].backward_weight_s

    def up(stage, i):
        return [("up", stage, i)] if 0 <= stage < ranks - 1 else []

    def down(stage, i):
        return [("down", stage, i)] if 0 < stage < ranks else []

    for i in range(warmup):
        yield up(rank - 1, i)
        yield forward_s
        yield up(rank, i)
    steady = microbatches - warmup
    if steady:
        yield up(rank - 1, warmup)
    for i in range(steady):
        yield forward_s
        yield up(rank, warmup + i) + down(rank + 1, i)
        yield backward_s
        yield down(rank, i) + (up(rank - 1, warmup + i + 1) if i < steady - 1 else [])
    for i in range(steady, microbatches):
        yield down(rank + 1, i)
        yield backward_s
        yield down(rank, i)


def rendezvous_s(programs, message_s):
    """The end of each program, where all messages of a wait start when both sides have come."""
    steps = [list(program) for program in programs]
    at, clock, posted = [0] * len(steps), [0.0] * len(steps), {}
    while any(at[r] < len(steps[r]) for r in range(len(steps))):
        before = list(at)
        for rank, program in enumerate(steps):
            while at[rank] < len(program):
                step = program[at[rank]]
                if isinstance(step, float):
                    clock[rank] += step
                else:
                    for message in step:
                        posted.setdefault(message, {})[rank] = clock[rank]
                    if any(len(posted[message]) < 2 for message in step):
                        break
                    ends = [max(posted[m].values()) + message_s(m) for m in step]
                    clock[rank] = max([clock[rank], *ends])
                at[rank] += 1
        assert at != before, "deadlock"
    return clock


@settings(deadline=None, max_examples=150)
@given(data=st.data(), ranks=st.integers(1, 5), microbatches=st.integers(1, 9))
def test_blocking_1f1b_is_megatrons(data, ranks, microbatches):
    """Messages of a boundary take the same time both ways here."""
    stages = list(data.draw(stage_times(ranks)))
    for stage in range(1, ranks):
        stages[stage] = replace(stages[stage], send_backward_s=stages[stage - 1].send_forward_s)

    def message_s(message):
        way, stage, _ = message
        return stages[stage].send_forward_s if way == "up" else stages[stage].send_backward_s

    programs = [megatron_1f1b(rank, ranks, microbatches, stages) for rank in range(ranks)]
    ends = rendezvous_s(programs, message_s)
    time = simulate("1f1b", stages, microbatches, ranks, blocking_sends=True)
    assert time.rank_end_s == pytest.approx(ends, rel=1e-9)


def lockstep_s(case, forwards, backwards):
    """Blocking messages by recursion: in each slot a rank runs its F, then its B, then exchanges
    everything with both neighbours, then runs a W of ``r`` backwards ago.

    Args:
        forwards, backwards: stage by (slot, rank).

    Returns:
        End of each rank, and by stage the end of its last backward.
    """
    ranks, stages = case.ranks, case.stages
    split = case.shape.splits_backward
    slots = max(slot for slot, _ in backwards) + 1
    run = {
        rank: [stage for (_, r), stage in sorted(backwards.items()) if r == rank]
        for rank in range(ranks)
    }

    def messages(slot):
        for rank in range(ranks):
            f, b = forwards.get((slot, rank)), backwards.get((slot, rank))
            if f is not None and f < len(stages) - 1:
                yield rank, (rank + 1) % ranks, stages[f].send_forward_s
            if b is not None and b > 0:
                yield rank, (rank - 1) % ranks, stages[b].send_backward_s

    clock, ended, done = [0.0] * ranks, {}, [0] * ranks
    for slot in range(slots):
        for rank in range(ranks):
            f, b = forwards.get((slot, rank)), backwards.get((slot, rank))
            clock[rank] += stages[f].forward_s if f is not None else 0.0
            if b is not None:
                clock[rank] += stages[b].backward_input_s
                clock[rank] += 0.0 if split else stages[b].backward_weight_s
                ended[b] = clock[rank]
        after = list(clock)
        for source, target, send_s in messages(slot):
            if source != target:
                met = max(clock[source], clock[target]) + send_s
                after[source], after[target] = max(after[source], met), max(after[target], met)
        clock = after
        for rank in range(ranks):
            if split and (slot, rank) in backwards:
                done[rank] += 1
                if done[rank] > rank:
                    stage = run[rank][done[rank] - rank - 1]
                    clock[rank] += stages[stage].backward_weight_s
                    ended[stage] = clock[rank]
    for rank in range(ranks):
        for stage in run[rank][max(0, done[rank] - rank) :] if split else ():
            clock[rank] += stages[stage].backward_weight_s
            ended[stage] = clock[rank]
    return clock, [ended[stage] for stage in range(len(stages))]


def megatron_interleaved_slots(case):
    """Iteration t - r of rank r runs at t: Megatron's warmup and chunks, p microbatches a group."""
    ranks, per_rank = case.ranks, len(case.stages) // case.ranks
    forwards, backwards = {}, {}
    for rank in range(ranks):
        warmup = 2 * (ranks - rank - 1) + (per_rank - 1) * ranks
        for i in range(case.microbatches * per_rank):
            chunk = (i % (ranks * per_rank)) // ranks
            forwards[rank + i, rank] = chunk * ranks + rank
            backwards[rank + warmup + i, rank] = (per_rank - 1 - chunk) * ranks + rank
    return forwards, backwards


def single_slots(case):
    """One stage per rank: where unit times would place GPipe, and 1F1B as late as possible."""
    forwards, backwards, ranks, m = {}, {}, case.ranks, case.microbatches
    gpipe = case.schedule == "gpipe"
    for rank in range(ranks):
        for i in range(m):
            forwards[(1 if gpipe else 2) * i + rank, rank] = rank
            first = m + 2 * (ranks - 1) if gpipe else 2 * ranks - 1
            backwards[(1 if gpipe else 2) * i + first - rank, rank] = rank
    return forwards, backwards


@settings(deadline=None, max_examples=200)
@given(case=cases(blocking=True, max_ranks=4, max_microbatches=12, schedules=ROWS))
def test_blocking_messages(case):
    if case.schedule == "interleaved_1f1b" and case.microbatches % case.ranks == 0:
        ends, last = lockstep_s(case, *megatron_interleaved_slots(case))
    elif len(case.stages) == case.ranks and case.schedule != "interleaved_1f1b":
        ends, last = lockstep_s(case, *single_slots(case))
    else:
        return
    time = case.simulate()
    assert time.rank_end_s == pytest.approx(ends, rel=1e-9)
    assert time.last_backward_end_s == pytest.approx(last, rel=1e-9)
