"""What a step takes with a range is no more than the simulation of 1F1B says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.search.pipeline.passages import Passages
from autoplan.search.pipeline.ranges import Bands
from cost_models.pipeline import simulate
from cost_models.schedule_times import StageTimes
from tests.unit.pipeline_cases import draw_times

_SECONDS = st.floats(0.2, 1.5)


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_a_step_takes_no_less_than_with_any_of_its_ranges(data):
    ranks = data.draw(st.integers(2, 6))
    microbatches = data.draw(st.integers(ranks, 3 * ranks))
    times = draw_times(data, ranks, _SECONDS)
    tails_s = [data.draw(st.floats(0.0, 4.0)) for _ in times]
    assert max(_least_s(times, tails_s, microbatches)) <= _step_s(times, tails_s, microbatches)


@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("tail_s", [0.0, 9.0])
def test_a_slow_rank_waits_for_its_last_microbatch_and_ends_with_its_own_tail(slow, tail_s):
    """The path through the slow rank is the critical one."""
    times = [
        StageTimes(
            forward_s=1.0 + (rank == slow),
            backward_input_s=1.0,
            backward_weight_s=1.0,
            send_forward_s=0.25 * (rank < 2),
            send_backward_s=0.25 * (rank > 0),
        )
        for rank in range(3)
    ]
    tails_s = [tail_s * (rank == slow) for rank in range(3)]
    found = _least_s(times, tails_s, 8)
    assert found[slow] == pytest.approx(_step_s(times, tails_s, 8), rel=1e-6)
    assert found[slow] == max(found)


def _step_s(times: list[StageTimes], tails_s: list[float], microbatches: int) -> float:
    found = simulate("1f1b", times, microbatches, len(times), blocking_sends=False)
    ends = zip(found.last_backward_end_s, tails_s, strict=True)
    return (1 + 1e-9) * max(end_s + tail_s for end_s, tail_s in ends)


def _least_s(times: list[StageTimes], tails_s: list[float], microbatches: int) -> list[float]:
    """Of one range for each rank, of known times."""
    ranks = len(times)
    ahead = np.arange(ranks)[::-1]
    left = microbatches - 1 - ahead
    forward_s, backward_s, there_s, back_s = np.array(
        [
            (
                each.forward_s,
                each.backward_input_s + each.backward_weight_s,
                each.send_forward_s,
                each.send_backward_s,
            )
            for each in times
        ]
    ).T
    turn_s = forward_s + backward_s
    at = np.arange(ranks), 0, np.arange(1, ranks + 1)

    def spread(values: np.ndarray) -> np.ndarray:
        found = np.full((ranks, 1, ranks + 1), np.inf)
        found[at] = values
        return found

    extra_s = spread(left * turn_s + ahead * backward_s)
    first_s = np.array(tails_s) * (np.arange(ranks) == 0)
    passages = Passages(
        once=Bands(shortest=1, share=spread(turn_s + there_s + back_s + first_s), extra=extra_s),
        there=Bands(shortest=1, share=spread(forward_s + there_s), extra=extra_s),
        ending_s=spread(turn_s + there_s + tails_s),
        turns_s=spread(left * turn_s),
        sent_s=np.broadcast_to(there_s[:, None], (ranks, ranks + 1)),
        start=np.maximum(np.arange(ranks + 1)[None, :] - 1, 0),
        left=left,
    )
    return passages.least_s()[at].tolist()
