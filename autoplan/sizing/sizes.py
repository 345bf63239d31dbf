"""What sizing has found: plans on clusters and numbers of nodes, with time, devices and money."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autoplan.job import Job
from autoplan.plan import Plan
from autoplan.sizing.goal import Goal


@dataclass(frozen=True, kw_only=True, slots=True)
class SizedPlan:
    """One plan for the goal.

    Attributes:
        days: of training without a break.
        least_days: no plan that was searched, on these nodes, takes less.
        price_per_gpu_hour_usd: assumed by the cluster's profile; None where it has no price.
        is_whole: all configurations were searched; else one, which is then within ``gap`` of them.
    """

    plan: Plan
    days: float
    least_days: float
    price_per_gpu_hour_usd: float | None
    is_whole: bool

    @property
    def nodes(self) -> int:
        return self.plan.job.nodes

    @property
    def devices(self) -> int:
        return self.plan.job.world_size

    @property
    def gpu_hours(self) -> float:
        return 24 * self.days * self.devices

    @property
    def usd(self) -> float | None:
        price = self.price_per_gpu_hour_usd
        return None if price is None else price * self.gpu_hours

    def is_open(self, goal: Goal) -> bool:
        """Whether it is late, and another plan on its nodes could be in time."""
        return self.least_days <= goal.days < self.days

    @property
    def gap(self) -> float:
        return self.plan.search.gap


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSizes:
    """One cluster.

    Attributes:
        smallest: the plan on the fewest nodes that is in time.
        others: plans on other numbers of nodes, fewest first, in time or not.
        reason: why none is in time; empty where one is.
    """

    cluster: str
    device: str
    smallest: SizedPlan | None
    others: tuple[SizedPlan, ...]
    reason: str = ""

    @property
    def plans(self) -> tuple[SizedPlan, ...]:
        """All plans."""
        return self.others if self.smallest is None else (self.smallest, *self.others)

    def in_time(self, goal: Goal) -> list[SizedPlan]:
        """Those that reach the goal."""
        return [plan for plan in self.plans if plan.days <= goal.days]


def sizes_of(
    cluster: str, device: str, plans: Iterable[SizedPlan], goal: Goal, reason: str
) -> ClusterSizes:
    """One cluster with its plans; the reason counts where none is in time."""
    ordered = sorted(plans, key=lambda plan: plan.nodes)
    smallest = next((plan for plan in ordered if plan.days <= goal.days), None)
    return ClusterSizes(
        cluster=cluster,
        device=device,
        smallest=smallest,
        others=tuple(plan for plan in ordered if plan is not smallest),
        reason="" if smallest else reason,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizing:
    """The answer: clusters in the order in which they were asked for.

    Attributes:
        job: what is trained, on any of them.
    """

    goal: Goal
    job: Job
    clusters: tuple[ClusterSizes, ...]

    def in_time(self) -> list[SizedPlan]:
        """All plans that reach the goal, on the fewest devices first."""
        found = [plan for each in self.clusters for plan in each.in_time(self.goal)]
        return sorted(found, key=lambda plan: (plan.devices, plan.gpu_hours))

    @property
    def smallest(self) -> SizedPlan | None:
        """That on the fewest devices."""
        return next(iter(self.in_time()), None)

    @property
    def least_gpu_hours(self) -> SizedPlan | None:
        """That with the fewest hours of devices."""
        return min(self.in_time(), key=lambda plan: plan.gpu_hours, default=None)

    @property
    def cheapest(self) -> SizedPlan | None:
        """That which costs least, among clusters with a price."""
        priced = [plan for plan in self.in_time() if plan.usd is not None]
        return min(priced, key=lambda plan: plan.usd or 0.0, default=None)
