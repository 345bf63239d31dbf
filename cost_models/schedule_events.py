"""Exact simulation of a schedule whose messages run beside compute, action by action.

The actions and what they wait for are those of ``schedule_graph``. ``schedule_wavefront`` gives the
same for all schedules but ``zbv``, many times faster.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cost_models.schedule_graph import schedule_graph
from cost_models.schedule_times import ScheduleClocks, StageTimes
from cost_models.schedules import PipelineShape


def simulate_events(shape: PipelineShape, stages: Sequence[StageTimes]) -> ScheduleClocks:
    """Clocks of a schedule with messages beside compute.

    Args:
        shape: the schedule and its sizes.
        stages: times of each stage, in the model's order.

    Raises:
        ScheduleError: the order of the actions cannot make progress.
    """
    graph = schedule_graph(shape)
    ends, arrivals = (np.array(times) for times in graph.ends_s(stages))
    source, free = np.array(graph.source), ends[np.array(graph.before)]
    exposed = np.maximum(free, arrivals[source]) - np.maximum(free, ends[source])
    return ScheduleClocks(
        rank_end_s=ends[np.array(graph.last_of_rank)].tolist(),
        last_backward_end_s=ends[np.array(graph.last_backward)].tolist(),
        exposed_send_s=np.bincount(graph.rank, exposed, minlength=shape.ranks).tolist(),
    )
