"""Longest paths through a schedule's dependency graph, followed backward action by action."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cost_models.schedule_graph import schedule_graph
from cost_models.schedule_paths import StageCounts
from cost_models.schedule_times import StageTimes
from cost_models.schedules import PipelineShape


class CriticalEvents:
    """A step run through for all its times; see ``critical_path``.

    Attributes:
        stage_end_s: when each stage's last backward ends.
    """

    def __init__(self, shape: PipelineShape, stages: Sequence[StageTimes]) -> None:
        self._graph = schedule_graph(shape)
        self._ends, self._arrivals = self._graph.ends_s(stages)
        self.stage_end_s = [self._ends[index] for index in self._graph.last_backward]

    def path_to(self, stage: int) -> StageCounts:
        """What is counted along a longest path to the end of a stage's last backward."""
        graph, ends, arrivals = self._graph, self._ends, self._arrivals
        stages = graph.shape.stages
        computes, messages = np.zeros((3, stages), dtype=np.int64), [0] * (2 * stages + 1)
        by_kind = computes.reshape(-1)
        index = graph.last_backward[stage]
        while index:
            by_kind[graph.compute[index]] += 1
            source = graph.source[index]
            index = graph.before[index]
            if arrivals[source] <= ends[index]:
                continue
            index = source
            messages[graph.message[index]] += 1
            while arrivals[graph.queue[index]] > ends[index]:
                index = graph.queue[index]
                messages[graph.message[index]] += 1
        forward, backward, weight = computes
        to_next, to_before = np.array(messages[:-1]).reshape(2, stages)
        return StageCounts(
            forward=forward,
            backward_input=backward,
            backward_weight=weight if graph.shape.splits_backward else backward,
            forward_sends=to_next,
            backward_sends=to_before,
        )
