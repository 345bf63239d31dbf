"""Plans of jobs that differ in nodes, batch or pins: what they have in common is made once."""

from __future__ import annotations

from autoplan.job import Job
from autoplan.plan import Plan
from autoplan.search.deadline import Deadline
from autoplan.search.pipeline.families import Families
from autoplan.search.planner import plan_priced, plan_quickly
from autoplan.search.pricing import Pricing
from autoplan.trace.graph import OpGraph
from autoplan.trace.stack import stack_of
from hardware_profiles.spec import ClusterSpec


class Series:
    """Plans one model on one cluster, on as many devices of each node.

    Args:
        graph: the model.
        job: any of the series.
        cluster: the profile that the jobs name.
        like: a series of the same model on another cluster, to share what both have.
    """

    def __init__(
        self, graph: OpGraph, job: Job, cluster: ClusterSpec, like: Series | None = None
    ) -> None:
        self._pricing = (
            like._pricing.for_job(job, cluster) if like else Pricing(graph, job, cluster)
        )
        self._families = Families(self._pricing, stack_of(graph))
        self.graph = graph
        self.cluster = cluster

    def quick(self, job: Job, deadline: Deadline | None = None) -> Plan | None:
        """As ``plan_quickly``."""
        return plan_quickly(self._pricing.for_job(job), self._families, deadline)

    def whole(self, job: Job, deadline: Deadline | None = None) -> Plan:
        """The plan of ``plan_job``, without alternatives."""
        return plan_priced(
            self._pricing.for_job(job),
            with_alternatives=False,
            deadline=deadline,
            families=self._families,
        )
