"""A job whose model is loaded and traced once, then planned many times.

Only samples of another length need another trace.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autoplan import request, subject
from autoplan.captured import captured
from autoplan.errors import PlanError
from autoplan.job import Job, Pins
from autoplan.progress import Progress, silent

if TYPE_CHECKING:
    from autoplan.plan import Plan
    from autoplan.sizing.series import Series
    from autoplan.sizing.sweeps import Limit

TRACING, SEARCHING = 0.05, 0.1
"""Where tracing and searching start on the scale of progress."""

_MOST_TOKENS = 2**22
_SAME_LENGTH = 1 / 16


class TracedJob:
    """A job whose model is loaded and traced, to plan it and others that differ in sizes."""

    def __init__(self, job: Job, tell: Progress) -> None:
        from autoplan.sizing.series import Series

        tell(0.0, f"loading {job.model.name}")
        case = subject.load(job.model)
        self.job = replace(job, model=replace(job.model, seq_len=case.seq_len))
        tell(TRACING, f"tracing {job.model.name}")
        graph = captured(case, self.job)
        self.series: Series = Series(graph, self.job, request.cluster_of(self.job))

    def of_length(self, seq_len: int) -> TracedJob:
        """The same model with samples of another length."""
        model = replace(self.job.model, seq_len=seq_len)
        return TracedJob(replace(self.job, model=model), silent)

    def longest_sequence(self, job: Job) -> Limit | None:
        """The longest samples that fit one at a time, whatever mesh it takes.

        It has no bound where the model takes no longer ones.

        Args:
            job: of which the devices and the memory are.

        Returns:
            None where nothing fits, or inputs of given shapes say how long samples are.
        """
        from autoplan.sizing.sweeps import fitting, largest

        length = self.job.model.seq_len
        if length is None or self.job.model.inputs:
            return None

        refused: set[int] = set()

        def fits(length: int) -> Plan | None:
            try:
                other = self.of_length(length)
            except PlanError:
                refused.add(length)
                return None
            longer = replace(job, model=other.job.model, pins=Pins(microbatch=1))
            return fitting(other.series, longer)

        found = largest(fits, length, _MOST_TOKENS, share=_SAME_LENGTH)
        return replace(found, bound=None) if found and found.bound in refused else found
