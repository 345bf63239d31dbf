"""Exact simulation of a schedule whose messages block both sides, slot by slot.

At the end of a slot, neighbours that have something for each other exchange it (Megatron without
overlap, ``batch_isend_irecv``; torch's ``Schedule1F1B`` waits for the same pairs of messages): the
exchange starts when both have ended their compute, takes the longer one of the two messages, and
neither goes on before its end. A rank's exchanges with both its neighbours run side by side.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cost_models.schedule_rows import Floats, Rows, stage_rows
from cost_models.schedule_slots import exchange_layout
from cost_models.schedule_times import ScheduleClocks, StageTimes
from cost_models.schedules import PipelineShape


def simulate_exchanges(shape: PipelineShape, stages: Sequence[StageTimes]) -> ScheduleClocks:
    """Clocks of a schedule with exchanges between its slots; not for ``zbv``.

    Args:
        shape: the schedule and its sizes.
        stages: times of each stage, in the model's order.
    """
    rows = stage_rows(exchange_layout(shape), stages)
    ends, exchanged, exposed = _run(rows, _exchange_s(rows))
    clock = exchanged + rows.weight_s
    return ScheduleClocks(
        rank_end_s=rows.rank_end_s(clock),
        last_backward_end_s=rows.last_backward_end_s(ends, clock),
        exposed_send_s=exposed,
    )


def _exchange_s(rows: Rows) -> Floats:
    """Seconds of the exchange of ranks r and r + 1 (of the last and the first), else -inf."""
    shape = rows.layout.shape
    none = np.full((rows.layout.slots, shape.ranks), -np.inf)
    if shape.ranks == 1:
        return none
    up = np.array([stage.send_forward_s for stage in rows.stages[:-1]] + [-np.inf])
    down = np.array([-np.inf] + [stage.send_backward_s for stage in rows.stages[1:]])
    forward = np.where(rows.forwards.runs, up[rows.forwards.stage], none)
    backward = np.where(rows.backwards.runs, down[rows.backwards.stage], none)
    return np.maximum(forward, np.roll(backward, -1, axis=1))


def _run(rows: Rows, exchange_s: Floats) -> tuple[Floats, Floats, list[float]]:
    """Ends of compute and of exchanges, both of shape (slots, ranks), and the exposed seconds.

    Arrays of a slot have one column more, so that both neighbours of each rank are beside it.
    """
    slots, ranks = exchange_s.shape
    cost = rows.forward_s + rows.backward_s
    cost[1:] += rows.weight_s[:-1]
    ends = np.empty((slots, ranks + 1))  # rank 0 again behind the last
    pairs = np.empty((slots, ranks + 1))  # the last pair again before the first
    exchanged = np.empty((slots + 1, ranks))
    exchanged[0] = 0.0
    for before, after, cost_s, pair_s, end, pair in zip(
        exchanged[:-1], exchanged[1:], cost, exchange_s, ends, pairs, strict=True
    ):
        own = end[:ranks]
        np.add(before, cost_s, out=own)
        end[ranks] = end[0]
        np.maximum(own, end[1:], out=after)
        np.add(after, pair_s, out=pair[1:])
        pair[0] = pair[ranks]
        np.maximum(pair[:ranks], pair[1:], out=after)
        np.maximum(after, own, out=after)
    met = np.where(np.isfinite(pairs[:, 1:]), np.maximum(ends[:, :-1], ends[:, 1:]), -np.inf)
    both = np.maximum(met, np.roll(met, 1, axis=1))
    exposed = exchanged[1:] - np.maximum(both, ends[:, :-1])
    return ends[:, :-1], exchanged[1:], exposed.sum(axis=0).tolist()
