"""Overlap by mechanism: closed forms, timelines replayed one event at a time, and bounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.overlap import bucketed_s, exposed_s, prefetched_s, tensor_parallel_s

seconds = st.floats(0, 100)
more = st.floats(0, 10)
counts = st.integers(1, 12)
efficiencies = st.floats(0, 1)

# Each takes two times of messages, one of compute, a count and an efficiency, and gives the total,
# the compute and the communication.
Case = Callable[[float, float, float, int, float], tuple[float, float, float]]


def one_message(alone_s, message_s, compute_s, count, efficiency):
    return compute_s + exposed_s(message_s, compute_s, efficiency), compute_s, message_s


def units(alone_s, message_s, compute_s, count, efficiency):
    shown_s = prefetched_s(alone_s, message_s, compute_s, count, efficiency)
    return count * compute_s + shown_s, count * compute_s, alone_s + count * message_s


def buckets(alone_s, message_s, compute_s, count, efficiency):
    shown_s = bucketed_s(message_s, compute_s, count, efficiency)
    return compute_s + shown_s, compute_s, message_s


def products(alone_s, message_s, compute_s, count, efficiency):
    shown_s = tensor_parallel_s(alone_s, message_s, compute_s, efficiency)
    return compute_s + shown_s, compute_s, alone_s + message_s


mechanisms = st.sampled_from([one_message, units, buckets, products])


@settings(deadline=None, max_examples=300)
@given(mechanisms, seconds, seconds, seconds, counts, efficiencies)
def test_between_the_longer_one_and_the_sum(case, alone_s, message_s, compute_s, count, efficiency):
    total_s, busy_s, sent_s = case(alone_s, message_s, compute_s, count, efficiency)
    assert max(busy_s, sent_s) * (1 - 1e-9) <= total_s <= (busy_s + sent_s) * (1 + 1e-9)


@settings(deadline=None, max_examples=300)
@given(mechanisms, st.lists(seconds, min_size=3, max_size=3), counts, efficiencies, st.data())
def test_no_time_that_grows_shortens_the_total(case, times, count, efficiency, data):
    index = data.draw(st.integers(0, 2))
    grown = [*times]
    grown[index] += data.draw(more)
    before_s, after_s = (case(*each, count, efficiency)[0] for each in (times, grown))
    assert before_s <= after_s * (1 + 1e-9)


@settings(deadline=None, max_examples=150)
@given(mechanisms, seconds, seconds, seconds, counts, st.tuples(efficiencies, efficiencies))
def test_better_overlap_never_takes_longer(case, alone_s, message_s, compute_s, count, two):
    slow_s, fast_s = (case(alone_s, message_s, compute_s, count, each)[0] for each in sorted(two))
    assert fast_s <= slow_s * (1 + 1e-9)


def test_what_the_efficiency_means():
    assert exposed_s(3.0, 2.0, 1.0) == 1.0
    assert exposed_s(3.0, 2.0, 0.0) == 3.0
    assert exposed_s(2.0, 3.0, 0.75) == 0.5


@settings(deadline=None, max_examples=100)
@given(seconds, seconds, counts)
def test_prefetch_is_a_stream_beside_a_stream(gather_s, compute_s, count):
    """With nothing lost: a unit starts when it is gathered and the unit before has ended; the next
    gather starts with it. The last unit has nothing to gather ahead."""
    start_s, gathered_s, ended_s = 0.0, gather_s, 0.0
    for unit in range(count):
        start_s = max(gathered_s, ended_s)
        ended_s = start_s + compute_s
        if unit + 1 < count:
            gathered_s = start_s + gather_s
    shown_s = prefetched_s(gather_s, gather_s, compute_s, count - 1, 1.0)
    assert count * compute_s + shown_s == pytest.approx(ended_s)


@settings(deadline=None, max_examples=100)
@given(seconds, seconds, counts)
def test_buckets_leave_as_the_backward_fills_them(comm_s, compute_s, count):
    """With nothing lost: a bucket leaves when it is full and the one before has left. Where the
    link is the slower one, the first bucket's wait comes on top of the formula."""
    full_s = [compute_s * (bucket + 1) / count for bucket in range(count)]
    left_s = 0.0
    for each_s in full_s:
        left_s = max(left_s, each_s) + comm_s / count
    total_s = compute_s + bucketed_s(comm_s, compute_s, count, 1.0)
    if comm_s <= compute_s:
        assert total_s == pytest.approx(left_s)
    assert total_s <= left_s * (1 + 1e-9)
    assert left_s <= (total_s + compute_s / count) * (1 + 1e-9)


@pytest.mark.parametrize(
    "call",
    [
        lambda: exposed_s(-1.0, 1.0, 0.5),
        lambda: exposed_s(1.0, -1.0, 0.5),
        lambda: exposed_s(1.0, 1.0, 1.5),
        lambda: prefetched_s(-1.0, 1.0, 1.0, 1, 0.5),
        lambda: prefetched_s(1.0, 1.0, 1.0, -1, 0.5),
        lambda: bucketed_s(1.0, 1.0, 0, 0.5),
        lambda: tensor_parallel_s(-1.0, 1.0, 1.0, 0.5),
    ],
)
def test_what_is_no_time_is_refused(call):
    with pytest.raises(ValueError, match=r"no such|cannot overlap|use one"):
        call()
