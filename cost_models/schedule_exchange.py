"""Exact simulation of a schedule whose messages block both sides, slot by slot.

At the end of a slot, neighbours that have something for each other exchange it (Megatron without
overlap, ``batch_isend_irecv``; torch's ``Schedule1F1B`` waits for the same pairs of messages): the
exchange starts when both have ended their compute, takes the longer one of the two messages, and
neither goes on before its end. A rank's exchanges with both its neighbours run side by side.

Where a schedule with fewer microbatches comes to a steady state, the longer one is that and further
periods of it (``schedule_repeat``), and is not run through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.schedule_repeat import longest_repetition, shortened
from cost_models.schedule_rows import StageSeconds, endings, stage_seconds
from cost_models.schedule_slots import Bools, Floats, Layout, exchange_layout
from cost_models.schedule_times import ScheduleClocks, StageTimes
from cost_models.schedules import PipelineShape

EQUAL = 1e-13  # of the clock: rounding


def simulate_exchanges(shape: PipelineShape, stages: Sequence[StageTimes]) -> ScheduleClocks:
    """Clocks of a schedule with exchanges between its slots; not for ``zbv``.

    Args:
        shape: the schedule and its sizes.
        stages: times of each stage, in the model's order.
    """
    short = shortened(shape)
    if short is not None:
        run = _run(exchange_layout(short), stages)
        period_s = run.steady_s()
        if period_s is not None:
            further = exchange_layout(shape).slots - run.layout.slots
            return run.clocks(further // run.layout.period, period_s)
    return _run(exchange_layout(shape), stages).clocks(0, 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """All clocks of a schedule.

    Attributes:
        compute_s, exchange_s: of each slot; an exchange that is none takes -inf.
        ends: of compute, of shape (slots, ranks).
        exchanged: ends of exchanges, of shape (slots + 1, ranks); row t + 1 is slot t.
        exposed_s: of shape (slots, ranks).
    """

    layout: Layout
    seconds: StageSeconds
    compute_s: Floats
    exchange_s: Floats
    ends: Floats
    exchanged: Floats
    exposed_s: Floats

    @property
    def repeated(self) -> tuple[int, int]:
        """First slot of those that do the same as a period before, and the one behind the last."""
        return longest_repetition(self.compute_s, self.exchange_s, self.layout.period)

    def steady_s(self) -> float | None:
        """Seconds of one period where all clocks move on by the same; None if none do."""
        first, last = self.repeated
        if first == last:
            return None
        since_s = self.exchanged[last] - self.exchanged[last - self.layout.period]
        return float(since_s[0]) if np.ptp(since_s) <= EQUAL * self.exchanged[last, 0] else None

    def clocks(self, periods: int, period_s: float) -> ScheduleClocks:
        """The clocks with further periods of the steady state."""
        found, later_s = endings(self.layout, self.seconds), periods * period_s
        splits_backward = self.layout.shape.splits_backward
        exposed_s = self.exposed_s.sum(axis=0)
        if periods:
            _, last = self.repeated
            exposed_s += periods * self.exposed_s[last - self.layout.period : last].sum(axis=0)
        ended = self.exchanged[1:] if splits_backward else self.ends
        return ScheduleClocks(
            rank_end_s=found.rank_end_s(self.exchanged[1:] + later_s),
            last_backward_end_s=found.stage_end_s(ended + later_s),
            exposed_send_s=exposed_s.tolist(),
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


def _run(layout: Layout, stages: Sequence[StageTimes]) -> _Run:
    """Runs through all slots.

    Rows have one column more, so that both neighbours of each rank are beside it.
    """
    seconds = stage_seconds(layout.shape, stages)
    compute_s, exchange_s = _compute_s(layout, seconds), _exchange_s(layout, seconds)
    slots, ranks = exchange_s.shape
    ends = np.empty((slots, ranks + 1))  # rank 0 again behind the last
    pairs = np.empty((slots, ranks + 1))  # the last pair again before the first
    exchanged = np.zeros((slots + 1, ranks))
    meets = np.isfinite(exchange_s)
    some_alone = (~(meets | np.roll(meets, 1, axis=1))).max(axis=1).tolist()
    lines = zip(
        *(exchanged[:-1], compute_s, ends, ends[:, :-1], ends[:, 1:]),
        *(exchange_s, pairs, pairs[:, :-1], pairs[:, 1:], exchanged[1:], some_alone),
        strict=True,
    )
    add, maximum = np.add, np.maximum
    for before, cost_s, end, own, other, pair_s, pair, lower, upper, after, alone in lines:
        add(before, cost_s, out=own)
        end[-1] = end[0]
        maximum(own, other, out=upper)
        add(upper, pair_s, out=upper)
        pair[0] = pair[-1]
        maximum(lower, upper, out=after)
        if alone:
            maximum(after, own, out=after)
    return _Run(
        layout=layout,
        seconds=seconds,
        compute_s=compute_s,
        exchange_s=exchange_s,
        ends=ends[:, :-1],
        exchanged=exchanged,
        exposed_s=_exposed_s(ends, exchanged[1:], pairs, meets),
    )


def _exposed_s(ends: Floats, exchanged: Floats, pairs: Floats, meets: Bools) -> Floats:
    """Of each slot and rank: from when it and those it exchanges with are ready.

    Uses the pairs up.
    """
    met = np.maximum(ends[:, :-1], ends[:, 1:], out=pairs[:, 1:])
    np.copyto(met, -np.inf, where=~meets)
    pairs[:, 0] = pairs[:, -1]
    ready = np.maximum(pairs[:, :-1], met)
    np.maximum(ready, ends[:, :-1], out=ready)
    return np.subtract(exchanged, ready, out=ready)
