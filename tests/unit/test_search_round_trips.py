"""Paths that go round neighbour ranks of 1F1B take no longer than its simulation."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.search.pipeline.trips import GROUP, Trips
from cost_models.pipeline import simulate
from cost_models.schedule_times import StageTimes
from tests.unit.pipeline_cases import draw_times

_SECONDS = st.floats(0.5, 1.5)


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_a_step_fits_what_its_simulation_takes(data):
    """One range for each rank, of known times: what is proven is below the simulation, and above
    what each rank takes alone."""
    ranks = data.draw(st.integers(2, GROUP + 3))
    microbatches = data.draw(st.integers(ranks, 6 * ranks))
    times = draw_times(data, ranks, _SECONDS)
    step_s = max(
        simulate("1f1b", times, microbatches, ranks, blocking_sends=False).last_backward_end_s
    )
    beside_s = sum(
        each.forward_s + _backward_s(each) + each.send_forward_s + each.send_backward_s
        for each in times
    )
    assert _trips(times, microbatches).fit(step_s - beside_s + 1e-9)


def test_messages_show_where_ranks_are_busy_for_as_long():
    """With equal ranks, a step takes up to a message there and one back for each microbatch more
    than without messages: most of that is proven."""
    ranks, microbatches, message_s = GROUP, 64 * GROUP, 0.01
    times = [
        StageTimes(
            forward_s=1.0,
            backward_input_s=1.0,
            backward_weight_s=1.0,
            send_forward_s=message_s * (rank < ranks - 1),
            send_backward_s=message_s * (rank > 0),
        )
        for rank in range(ranks)
    ]
    alone_s = 3.0 * (microbatches - 1)
    trips = _trips(times, microbatches)
    assert not trips.fit(alone_s + 1.2 * microbatches * message_s)
    assert trips.fit(alone_s + 2.0 * microbatches * message_s)


def _trips(times: list[StageTimes], microbatches: int) -> Trips:
    ranks = len(times)
    ahead = ranks - 1 - np.arange(ranks)
    left = microbatches - 1 - ahead
    backward_s = np.array([_backward_s(each) for each in times], dtype=np.float64)
    cycle_s = backward_s + [each.forward_s for each in times]
    ends = np.arange(ranks + 1)

    def spread(values: np.ndarray, beside: float = 0.0) -> np.ndarray:
        found = np.full((ranks, 1, ranks + 1), beside)
        found[np.arange(ranks), 0, ends[1:]] = values
        return found

    hops_s = np.zeros((ranks, ranks + 1))
    for rank in range(1, ranks):
        hops_s[rank, rank] = times[rank - 1].send_forward_s + times[rank].send_backward_s
    own_s = ahead.astype(np.float64) * backward_s
    return Trips(
        cycle_s=spread(cycle_s),
        own_s=spread(own_s),
        extra_s=spread(np.zeros(ranks), np.inf),
        own_reference_s=own_s,
        hops_s=hops_s,
        start=np.maximum(ends[None, :] - 1, 0),
        left=left,
    )


def _backward_s(times: StageTimes) -> float:
    return times.backward_input_s + times.backward_weight_s
