"""The fewest nodes of one cluster that reach a goal, found by few plans.

More nodes take less time, nearly in proportion: from one plan follows where to look next. Plans are
made quickly (``plan_quickly``); where the bound of one that is late leaves open whether another is
in time, its row says so (``SizedPlan.is_open``).
"""

from __future__ import annotations

import math
from dataclasses import replace

from autoplan.errors import PlanError
from autoplan.job import Job
from autoplan.plan import Plan
from autoplan.plurals import counted
from autoplan.search.deadline import Deadline
from autoplan.sizing.goal import Goal, at_least, least_nodes, node_counts
from autoplan.sizing.series import Series
from autoplan.sizing.sizes import ClusterSizes, SizedPlan, sizes_of

_EXPECTED_SHARE = 0.4
"""Of the peak rate: where to look first."""


class NodeSearch:
    """Sizes one cluster.

    Args:
        series: of the model on the cluster.
        job: on any number of nodes.
        most_nodes: to look at.
        deadline: when searches end with what they have.
    """

    def __init__(
        self,
        series: Series,
        job: Job,
        goal: Goal,
        *,
        most_nodes: int,
        deadline: Deadline | None = None,
    ) -> None:
        self._series = series
        self._job = job
        self._goal = goal
        self._deadline = deadline
        self._counts = list(node_counts(most_nodes))
        self._planned: dict[int, SizedPlan] = {}
        self._fault = ""

    def sizes(self) -> ClusterSizes:
        """The fewest nodes in time, and what else was planned."""
        found = self._smallest() is not None
        return sizes_of(
            self._job.cluster,
            self._series.cluster.device.name,
            self._planned.values(),
            self._goal,
            "" if found else self._reason(),
        )

    def searched(self, sized: SizedPlan) -> SizedPlan:
        """The same nodes with all configurations searched."""
        if sized.is_whole:
            return sized
        try:
            plan = self._series.whole(sized.plan.job, self._deadline)
        except PlanError:  # No plan within the time limit: the one that is known stays.
            return sized
        if plan.estimate.step_s > sized.plan.estimate.step_s:
            return sized
        return self._sized(plan, is_whole=True)

    def _smallest(self) -> SizedPlan | None:
        """Narrows down where the goal is first reached, taking it that more nodes take less."""
        least = least_nodes(self._series.graph, self._job, self._series.cluster, self._goal)
        low, high = at_least(self._counts, least) - 1, len(self._counts)
        guess = at_least(self._counts, least / _EXPECTED_SHARE)
        while low + 1 < high:
            place = min(max(guess, low + 1), high - 1)
            count = self._counts[place]
            if not self._plans(count):
                del self._counts[place]
                high -= 1
                continue
            sized = self._planned.get(count)
            if sized is None:
                low, guess = place, place + 2
                continue
            if sized.days <= self._goal.days:
                high = place
            else:
                low = place
            guess = at_least(self._counts, count * sized.days / self._goal.days)
        if high == len(self._counts):
            return None
        self._look_at_next_power(high)
        return self._planned[self._counts[high]]

    def _look_at_next_power(self, place: int) -> None:
        """Plans the next power of two, whose meshes can be so much better that it costs less."""
        count = self._counts[place]
        if count & (count - 1):
            more = 1 << count.bit_length()
            if more in self._counts:
                self._plans(more)

    def _plans(self, count: int) -> bool:
        """Plans on so many nodes; whether there are meshes for them at all."""
        if count in self._planned:
            return True
        job = replace(self._job, nodes=count)
        try:
            plan = self._series.quick(job, self._deadline)
        except PlanError as error:
            self._fault = str(error)
            return False
        if plan is None:
            self._fault = f"nothing fits {counted(count, 'node')}"
            return True
        self._planned[count] = self._sized(plan, is_whole=False)
        return True

    def _sized(self, plan: Plan, *, is_whole: bool) -> SizedPlan:
        return SizedPlan(
            plan=plan,
            days=self._goal.days_of(plan.job, plan.estimate.step_s),
            least_days=self._goal.days_of(plan.job, plan.search.lower_bound_s),
            price_per_gpu_hour_usd=self._series.cluster.price_per_gpu_hour_usd,
            is_whole=is_whole,
        )

    def _reason(self) -> str:
        """Why the goal is not reached."""
        if self._planned:
            most = max(self._planned)
            days = self._planned[most].days
            more = f"; on more, {self._fault}" if self._fault else ""
            return f"not in time: {days:.3g} days on {counted(most, 'node')}{more}"
        least = least_nodes(self._series.graph, self._job, self._series.cluster, self._goal)
        at_peak = f"takes {math.ceil(least):,} nodes even at the peak rate of their devices"
        if self._fault:
            return f"{at_peak}; on so many, {self._fault}"
        return f"{at_peak}, and at most {self._counts[-1]:,} could be had"
