"""Exact simulation of a schedule whose messages block both sides, slot by slot.

At the end of a slot, neighbours that have something for each other exchange it (Megatron without
overlap, ``batch_isend_irecv``; torch's ``Schedule1F1B`` waits for the same pairs of messages): the
exchange starts when both have ended their compute, takes the longer one of the two messages, and
neither goes on before its end. A rank's exchanges with both its neighbours run side by side.

Slots are sums and maxima of the clocks before them. Where slots do the same as a period before, and
all clocks have moved on by the same time since, they move on by it in each further period: such a
steady state is not run through.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cost_models.schedule_repeat import longest_repetition, repeat
from cost_models.schedule_rows import StageSeconds, endings, stage_seconds
from cost_models.schedule_slots import Bools, Floats, Layout, exchange_layout
from cost_models.schedule_times import ScheduleClocks, StageTimes
from cost_models.schedules import PipelineShape

LOOK_EVERY = 16  # slots, for a steady state
EQUAL = 1e-13  # of the clock: rounding


def simulate_exchanges(shape: PipelineShape, stages: Sequence[StageTimes]) -> ScheduleClocks:
    """Clocks of a schedule with exchanges between its slots; not for ``zbv``.

    Args:
        shape: the schedule and its sizes.
        stages: times of each stage, in the model's order.
    """
    layout, seconds = exchange_layout(shape), stage_seconds(shape, stages)
    ends, exchanged, exposed = _run(
        _compute_s(layout, seconds), _exchange_s(layout, seconds), layout.period
    )
    found = endings(layout, seconds)
    return ScheduleClocks(
        rank_end_s=found.rank_end_s(exchanged),
        last_backward_end_s=found.stage_end_s(exchanged if shape.splits_backward else ends),
        exposed_send_s=exposed,
    )


def _compute_s(layout: Layout, seconds: StageSeconds) -> Floats:
    """Compute of a slot: W behind the exchange of the slot before, then F and B."""
    compute = layout.of_forwards(seconds.forward, 0.0) + layout.of_backwards(seconds.backward, 0.0)
    if layout.shape.splits_backward:
        compute[1:] += layout.of_weights(seconds.weight)[:-1]
    return compute


def _exchange_s(layout: Layout, seconds: StageSeconds) -> Floats:
    """Seconds of the exchange of ranks r and r + 1 (of the last and the first), else -inf."""
    if layout.shape.ranks == 1:
        return np.full((layout.slots, 1), -np.inf)
    forward, backward = seconds.send_forward.copy(), seconds.send_backward.copy()
    forward[-1] = backward[0] = -np.inf
    up, down = layout.of_forwards(forward, -np.inf), layout.of_backwards(backward, -np.inf)
    np.maximum(up[:, :-1], down[:, 1:], out=up[:, :-1])
    np.maximum(up[:, -1], down[:, 0], out=up[:, -1])
    return up


def _run(compute_s: Floats, exchange_s: Floats, period: int) -> tuple[Floats, Floats, list[float]]:
    """Ends of compute and of exchanges, both of shape (slots, ranks), and the exposed seconds.

    Rows have one column more, so that both neighbours of each rank are beside it.

    Args:
        compute_s: of shape (slots, ranks).
        exchange_s: as ``compute_s``; -inf where there is none.
        period: slots after which the schedule does the same again.
    """
    slots, ranks = exchange_s.shape
    ends = np.empty((slots, ranks + 1))  # rank 0 again behind the last
    pairs = np.empty((slots, ranks + 1))  # the last pair again before the first
    exchanged = np.zeros((slots + 1, ranks))
    meets = np.isfinite(exchange_s)
    some_alone = (~(meets | np.roll(meets, 1, axis=1))).max(axis=1).tolist()
    lines = (
        *(exchanged[:-1], compute_s, ends, ends[:, :-1], ends[:, 1:]),
        *(exchange_s, pairs, pairs[:, :-1], pairs[:, 1:], exchanged[1:], some_alone),
    )
    first, last = longest_repetition(compute_s, exchange_s, period)
    slot = 0
    while slot < slots:
        stop = min(slot + max(period, LOOK_EVERY), last) if first <= slot < last else slots
        stop = first if slot < first < last else stop
        _advance(*(line[slot:stop] for line in lines))
        slot = stop
        if first < slot < last:
            since_s = exchanged[slot] - exchanged[slot - period]
            if np.ptp(since_s) <= EQUAL * exchanged[slot, 0]:
                for clocks, done in ((ends, slot), (exchanged, slot + 1)):
                    repeat(clocks, done, done + last - slot, period, since_s[0])
                slot = last
    return ends[:, :-1], exchanged[1:], _exposed_s(ends, exchanged[1:], pairs, ~meets)


def _advance(*lines: Floats | list[bool]) -> None:
    """Slot after slot of the arrays of ``_run``."""
    add, maximum = np.add, np.maximum
    for line in zip(*lines, strict=True):
        before, cost_s, end, own, other, pair_s, pair, lower, upper, after, alone = line
        add(before, cost_s, out=own)
        end[-1] = end[0]
        maximum(own, other, out=upper)
        add(upper, pair_s, out=upper)
        pair[0] = pair[-1]
        maximum(lower, upper, out=after)
        if alone:
            maximum(after, own, out=after)


def _exposed_s(ends: Floats, exchanged: Floats, pairs: Floats, apart: Bools) -> list[float]:
    """Of each rank: from when it and those it exchanges with are ready. Uses the pairs up."""
    met = np.maximum(ends[:, :-1], ends[:, 1:], out=pairs[:, 1:])
    np.copyto(met, -np.inf, where=apart)
    pairs[:, 0] = pairs[:, -1]
    ready = np.maximum(pairs[:, :-1], met)
    np.maximum(ready, ends[:, :-1], out=ready)
    return np.subtract(exchanged, ready, out=ready).sum(axis=0).tolist()
