"""Exact simulation of a schedule with messages beside compute, all ranks of a slot at once.

With c the clock of a rank behind its last action, slot by slot (``schedule_slots``)

    F[r] = max(c[r], arrival of F of the stage before) + forward
    B[r] = max(F[r], arrival of B of the stage after) + backward,    c[r] = B[r] + W

Times are kept as F - U and B - S, where U sums forwards and messages from the first stage to this
one, and S backwards and messages from this one to the last: a microbatch that never waits keeps its
value, and a slot is two additions and two maxima of rows. An absent action passes its rank's clock
on; its potential lies so far off that nothing comes to it from other ranks. Where a message can
last longer than its rank's next action, the times at which messages leave are kept as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.schedule_rows import StageSeconds, endings, stage_seconds
from cost_models.schedule_slots import Floats, Layout, overlapped_layout
from cost_models.schedule_times import ScheduleClocks, StageTimes
from cost_models.schedules import PipelineShape


def simulate_wavefront(shape: PipelineShape, stages: Sequence[StageTimes]) -> ScheduleClocks:
    """Clocks of a schedule with messages beside compute; not for ``zbv``.

    Args:
        shape: the schedule and its sizes.
        stages: times of each stage, in the model's order.
    """
    front = run_wavefront(shape, stages)
    found = endings(front.layout, front.seconds)
    backward_end = front.backward_end_s()
    return ScheduleClocks(
        rank_end_s=found.rank_end_s(backward_end),
        last_backward_end_s=found.stage_end_s(backward_end),
        exposed_send_s=_exposed_s(front),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Wavefront:
    """All clocks of a simulated schedule."""

    layout: Layout
    seconds: StageSeconds
    lines: Lines
    came_back: ComesBack

    def backward_end_s(self) -> Floats:
        """When the backwards (B or I) of all slots end, of shape (slots, ranks)."""
        return self.lines.b[1:, :-1] + self.lines.backward_potential


def run_wavefront(shape: PipelineShape, stages: Sequence[StageTimes]) -> Wavefront:
    """As ``simulate_wavefront``, with the times of all actions."""
    layout, seconds = overlapped_layout(shape), stage_seconds(shape, stages)
    lines, came_back = _lines(layout, seconds), _comes_back(layout)
    _run(layout, lines, came_back)
    return Wavefront(layout=layout, seconds=seconds, lines=lines, came_back=came_back)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lines:
    """Times less potentials and the constants between them.

    Attributes:
        f, b: F - U and B - S, of shape (slots + 1, ranks + 1). Row t + 1 is slot t. F has a column
            before rank 0 and B one behind the last rank, for what comes back to the end of the line
            from its other end, one stage of a rank to the next.
        f_sent, b_sent: the same of when messages leave; ``f`` and ``b`` where none waits.
        to_forward, to_backward: what is added from clock to F, and from F to B; row t is slot t.
        to_f_sent, to_b_sent: what is added from when a message leaves to when the next one can.
        backward_potential: S.
    """

    f: Floats
    b: Floats
    f_sent: Floats
    b_sent: Floats
    to_forward: Floats
    to_backward: Floats
    to_f_sent: Floats
    to_b_sent: Floats
    backward_potential: Floats


def _lines(layout: Layout, seconds: StageSeconds) -> Lines:
    ranks = layout.shape.ranks
    up, down = np.roll(seconds.send_forward, 1), np.roll(seconds.send_backward, -1)  # to a stage
    backward_s = seconds.backward + seconds.weight + seconds.send_backward
    longest_s = float(np.maximum(seconds.forward + seconds.send_forward, backward_s).max())
    # One action and its message at a time, in lockstep, would take at most two slots' time a slot.
    far = 2 * layout.slots * longest_s * np.arange(ranks)
    from_first = np.cumsum(seconds.forward + up)
    to_last = np.cumsum((seconds.backward + down)[::-1])[::-1]
    forward_potential = layout.of_forwards(from_first, -far)
    backward_potential = layout.of_backwards(to_last, far)
    to_forward = layout.of_forwards(seconds.forward - from_first, far)
    to_forward[0] += far
    to_forward[1:] += backward_potential[:-1]
    if layout.shape.splits_backward:
        to_forward[1:] += layout.of_weights(seconds.weight)[:-1]
    to_backward = layout.of_backwards(seconds.backward - to_last, -far)
    to_backward += forward_potential
    f, b = (np.full((layout.slots + 1, ranks + 1), -np.inf) for _ in range(2))
    b[0, :ranks] = -far
    f_sent, b_sent, to_f_sent, to_b_sent = f, b, to_forward, to_backward
    if _may_wait(layout.shape, seconds):
        f_sent, b_sent = (np.full_like(f, -np.inf) for _ in range(2))
        to_f_sent = -forward_potential
        to_f_sent[1:] += layout.of_forwards(from_first + seconds.send_forward, -far)[:-1]
        to_b_sent = -backward_potential
        to_b_sent[1:] += layout.of_backwards(to_last + seconds.send_backward, far)[:-1]
    return Lines(
        f=f,
        b=b,
        f_sent=f_sent,
        b_sent=b_sent,
        to_forward=to_forward,
        to_backward=to_backward,
        to_f_sent=to_f_sent,
        to_b_sent=to_b_sent,
        backward_potential=backward_potential,
    )


def _may_wait(shape: PipelineShape, seconds: StageSeconds) -> bool:
    """Whether a message can last longer than its rank's next action of the same kind."""
    for message_s, compute_s in (
        (seconds.send_forward, seconds.forward),
        (seconds.send_backward, seconds.backward),
    ):
        longest_s = message_s.reshape(-1, shape.ranks).max(axis=0)
        shortest_s = compute_s.reshape(-1, shape.ranks).min(axis=0)
        if (longest_s > shortest_s).any():
            return True
    return False


@dataclass(frozen=True, kw_only=True, slots=True)
class ComesBack:
    """Which slots' F on rank 0, and B on the last rank, follow a stage at the other end.

    Attributes:
        forward, backward: by slot.
        forward_lag, backward_lag: rows from that stage's action in the other end's column to the
            end of the line.
    """

    forward: list[bool]
    backward: list[bool]
    forward_lag: int
    backward_lag: int


def _comes_back(layout: Layout) -> ComesBack:
    stages = np.arange(layout.shape.stages)
    ranks = layout.shape.ranks
    forward = layout.of_forwards(stages >= ranks, 0.0)[:, 0]
    backward = layout.of_backwards(stages < layout.shape.stages - ranks, 0.0)[:, -1]
    return ComesBack(
        forward=forward.astype(bool).tolist(),
        backward=backward.astype(bool).tolist(),
        forward_lag=layout.round_places - ranks,
        backward_lag=layout.round_places - layout.lag * (ranks - 1) - 1,
    )


def _run(layout: Layout, lines: Lines, came_back: ComesBack) -> None:
    """Fill in the times, slot by slot."""
    f, b, f_sent, b_sent = lines.f, lines.b, lines.f_sent, lines.b_sent
    f_lag, b_lag = came_back.forward_lag, came_back.backward_lag
    waits = f_sent is not f
    maximum, add, scan = np.maximum, np.add, np.maximum.accumulate
    rows = zip(
        *(f_sent[:-1, :-1], f[1:, 1:], lines.to_forward, came_back.forward),
        *(b[:-1, :-1], b_sent[:-1, 1:], b[1:, :-1], lines.to_backward, came_back.backward),
        strict=True,
    )
    for slot, row in enumerate(rows):
        f_in, f_out, to_f, f_back, clock, b_in, b_out, to_b, b_back = row
        if f_back:
            f_in[0] = f_sent[slot - f_lag, -1]
        add(clock, to_f, out=f_out)
        maximum(f_out, f_in, out=f_out)
        add(f_out, to_b, out=b_out)
        if b_back:
            b_out[-1] = max(b_out[-1], b_sent[slot - b_lag, 0])
        if layout.lag:
            maximum(b_out, b_in, out=b_out)
        sent = b_out
        if waits:
            sent = f_sent[slot + 1, 1:]
            add(f_sent[slot, 1:], lines.to_f_sent[slot], out=sent)
            maximum(sent, f_out, out=sent)
            sent = b_sent[slot + 1, :-1]
            add(b_sent[slot, :-1], lines.to_b_sent[slot], out=sent)
            maximum(sent, b_out, out=sent)
        if not layout.lag:
            scan(sent[::-1], out=sent[::-1])
            if waits:
                maximum(b_out[:-1], sent[1:], out=b_out[:-1])


def arrived(front: Wavefront, f: Floats, b: Floats) -> tuple[Floats, Floats]:
    """What comes to the F and to the B of each slot and rank; fills in what comes back.

    Args:
        front: clocks.
        f, b: its lines ``f`` and ``b``, or ``f_sent`` and ``b_sent``.
    """
    came_back, lag = front.came_back, front.layout.lag
    back = np.flatnonzero(came_back.forward)
    f[back, 0] = f[back - came_back.forward_lag, -1]
    back = np.flatnonzero(came_back.backward)
    came = back if lag else back + 1
    b[came, -1] = b[back - came_back.backward_lag, 0]
    return f[:-1, :-1], b[:-1, 1:] if lag else b[1:, 1:]


def _exposed_s(front: Wavefront) -> list[float]:
    """Of each rank: its waits beyond its clock and beyond the action that a message comes from.

    Uses the lines' constants up.
    """
    layout, seconds, lines = front.layout, front.seconds, front.lines
    f, b = lines.f, lines.b
    f_from, b_from = arrived(front, f, b)
    up, down = np.roll(seconds.send_forward, 1), np.roll(seconds.send_backward, -1)
    exposed = np.zeros(layout.shape.ranks)
    for before, end, to_end, computed, message_s in (
        (b[:-1, :-1], f[1:, 1:], lines.to_forward, f_from, layout.of_forwards(up, 0.0)),
        (f[1:, 1:], b[1:, :-1], lines.to_backward, b_from, layout.of_backwards(down, 0.0)),
    ):
        ready = np.add(before, to_end, out=to_end)
        np.maximum(ready, np.subtract(computed, message_s, out=message_s), out=ready)
        exposed += np.subtract(end, ready, out=ready).sum(axis=0)
    return exposed.tolist()
