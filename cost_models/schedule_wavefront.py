"""Exact simulation of a schedule with messages beside compute, all ranks of a slot at once.

With c the clock of a rank behind its last action, slot by slot (``schedule_slots``)

    F[r] = max(c[r], F of the stage before + its message) + forward
    B[r] = max(F[r], B of the stage after + its message) + backward,    c[r] = B[r] + W

Times are kept as F - U and B - S, where U sums forwards and messages from the first stage to this
one, and S backwards and messages from this one to the last: a microbatch that never waits keeps its
value, and a slot is two additions and two maxima of rows. An absent action passes its rank's clock
on; its potential lies so far off that nothing comes to it from other ranks.

That holds while messages of one rank never queue up: ``sends_never_queue``. Else
``schedule_events`` has to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.schedule_rows import StageSeconds, endings, stage_seconds
from cost_models.schedule_slots import Floats, Layout, overlapped_layout
from cost_models.schedule_times import ScheduleClocks, StageTimes
from cost_models.schedules import PipelineShape


def sends_never_queue(shape: PipelineShape, stages: Sequence[StageTimes]) -> bool:
    """Whether each message is over before its rank's next action of the same kind."""
    seconds = stage_seconds(shape, stages)
    for message_s, compute_s in (
        (seconds.send_forward, seconds.forward),
        (seconds.send_backward, seconds.backward),
    ):
        longest_s = message_s.reshape(-1, shape.ranks).max(axis=0)
        shortest_s = compute_s.reshape(-1, shape.ranks).min(axis=0)
        if (longest_s > shortest_s).any():
            return False
    return True


def simulate_wavefront(shape: PipelineShape, stages: Sequence[StageTimes]) -> ScheduleClocks:
    """Clocks of a schedule with messages beside compute; not for ``zbv``.

    Args:
        shape: the schedule and its sizes.
        stages: times of each stage, in the model's order, for which ``sends_never_queue``.
    """
    layout, seconds = overlapped_layout(shape), stage_seconds(shape, stages)
    lines = _lines(layout, seconds)
    _run(layout, lines)
    backward_end = lines.backward + lines.potential
    found = endings(layout, seconds)
    return ScheduleClocks(
        rank_end_s=found.rank_end_s(backward_end),
        last_backward_end_s=found.stage_end_s(backward_end),
        exposed_send_s=_exposed_s(layout, seconds, lines),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Lines:
    """Times less potentials and the constants between them; row t is slot t.

    Attributes:
        f, b: of shape (slots + 1, ranks + 1): F - U and B - S. Row t + 1 is slot t. F has a column
            before rank 0 and B one behind the last rank, for what comes back to the end of the line
            from its other end, one stage of a rank to the next.
        to_forward, to_backward: what is added from clock to F, and from F to B.
        potential: S.
    """

    f: Floats
    b: Floats
    to_forward: Floats
    to_backward: Floats
    potential: Floats

    @property
    def forward(self) -> Floats:
        return self.f[1:, 1:]

    @property
    def backward(self) -> Floats:
        return self.b[1:, :-1]

    @property
    def clock(self) -> Floats:
        """B of the slot before."""
        return self.b[:-1, :-1]


def _lines(layout: Layout, seconds: StageSeconds) -> _Lines:
    ranks = layout.shape.ranks
    up, down = np.roll(seconds.send_forward, 1), np.roll(seconds.send_backward, -1)  # to a stage
    backward_s = seconds.backward + seconds.weight + down
    longest_s = float(np.maximum(seconds.forward + up, backward_s).max())
    # One action and its message at a time, in lockstep, would take at most two slots' time a slot.
    far = 2 * layout.slots * longest_s * np.arange(ranks)
    from_first = np.cumsum(seconds.forward + up)
    to_last = np.cumsum((seconds.backward + down)[::-1])[::-1]
    to_forward = layout.of_forwards(seconds.forward - from_first, far)
    to_backward = layout.of_backwards(seconds.backward - to_last, -far)
    to_backward += layout.of_forwards(from_first, -far)
    potential = layout.of_backwards(to_last, far)
    to_forward[0] += far
    to_forward[1:] += potential[:-1]
    if layout.shape.splits_backward:
        to_forward[1:] += layout.of_weights(seconds.weight)[:-1]
    f = np.full((layout.slots + 1, ranks + 1), -np.inf)
    b = np.full((layout.slots + 1, ranks + 1), -np.inf)
    b[0, :ranks] = -far
    return _Lines(f=f, b=b, to_forward=to_forward, to_backward=to_backward, potential=potential)


def _exposed_s(layout: Layout, seconds: StageSeconds, lines: _Lines) -> list[float]:
    """Of each rank: an action's wait, but no more than its message takes. Uses the lines up."""
    waits = np.add(lines.clock, lines.to_forward, out=lines.to_forward)
    np.subtract(lines.forward, waits, out=waits)
    np.minimum(waits, layout.of_forwards(np.roll(seconds.send_forward, 1), 0.0), out=waits)
    exposed = waits.sum(axis=0)
    waits = np.add(lines.forward, lines.to_backward, out=lines.to_backward)
    np.subtract(lines.backward, waits, out=waits)
    np.minimum(waits, layout.of_backwards(np.roll(seconds.send_backward, -1), 0.0), out=waits)
    return (exposed + waits.sum(axis=0)).tolist()


def _run(layout: Layout, lines: _Lines) -> None:
    """Fill in the times, slot by slot."""
    f, b, ranks = lines.f, lines.b, layout.shape.ranks
    f_lag = layout.round_places - ranks
    b_lag = layout.round_places - layout.lag * (ranks - 1) - 1
    maximum, add, scan = np.maximum, np.add, np.maximum.accumulate
    rows = zip(
        *(f[:-1, :-1], lines.forward, lines.to_forward),
        *(lines.clock, b[:-1, 1:], lines.backward, b[1:, -2::-1], lines.to_backward),
        *_comes_back(layout),
        strict=True,
    )
    for slot, row in enumerate(rows):
        f_in, f_out, to_f, clock, b_in, b_out, b_reversed, to_b, f_back, b_back = row
        if f_back:
            f_in[0] = f[slot - f_lag, ranks]
        add(clock, to_f, out=f_out)
        maximum(f_out, f_in, out=f_out)
        add(f_out, to_b, out=b_out)
        if b_back:
            b_in[-1] = b[slot - b_lag, 0]
        if layout.lag:
            maximum(b_out, b_in, out=b_out)
        else:
            if b_back:
                b_out[-1] = max(b_out[-1], b_in[-1])
            scan(b_reversed, out=b_reversed)


def _comes_back(layout: Layout) -> tuple[list[bool], list[bool]]:
    """Slots in which F of rank 0, and B of the last rank, follow a stage of the other end."""
    stages = np.arange(layout.shape.stages)
    ranks = layout.shape.ranks
    forward = layout.of_forwards(stages >= ranks, 0.0)[:, 0]
    backward = layout.of_backwards(stages < layout.shape.stages - ranks, 0.0)[:, -1]
    return forward.astype(bool).tolist(), backward.astype(bool).tolist()
