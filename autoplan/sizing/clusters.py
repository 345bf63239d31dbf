"""Which of several clusters reaches a goal with least: devices, hours of devices, money.

Every cluster is sized by quick plans. Then everything is searched for those that are the answers,
and for late ones that would be if the plan that their bound leaves open is there. Each row says by
how much another plan on its nodes could be faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from autoplan.job import Job
from autoplan.progress import Progress
from autoplan.search.deadline import Deadline
from autoplan.sizing.goal import Goal
from autoplan.sizing.nodes import NodeSearch
from autoplan.sizing.processes import worked_on
from autoplan.sizing.series import Series
from autoplan.sizing.sizes import ClusterSizes, SizedPlan, Sizing, sizes_of
from autoplan.trace.graph import OpGraph
from hardware_profiles.spec import ClusterSpec

_ANSWERS = 0.85
"""Where searching all for the answers starts on the scale of progress."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """A cluster to look at, and the job on it, whatever its nodes."""

    job: Job
    cluster: ClusterSpec
    most_nodes: int


def size_all(
    graph: OpGraph,
    sites: Sequence[Site],
    goal: Goal,
    *,
    progress: Progress,
    time_limit_s: float | None = None,
) -> Sizing:
    """Sizes every cluster, several at once where this machine has the processors.

    Args:
        graph: the model.
        sites: at least one.
        progress: called with the fraction done and what is known.
        time_limit_s: after which the searches of one cluster end with what they have.
    """
    sizer = _Sizer(graph, goal, time_limit_s)
    found: dict[int, ClusterSizes] = {}
    for number, sizes in worked_on(sizer.sizes, sites):
        found[number] = sizes
        progress(_ANSWERS * len(found) / len(sites), _told(sizes))
    sizing = Sizing(
        goal=goal,
        job=sites[0].job,
        clusters=tuple(found[number] for number in range(len(sites))),
    )
    answers = [each for each in (*_answers(sizing), *_open(sizing)) if not each.is_whole]
    progress(_ANSWERS, "searching all configurations of the answers")
    by_cluster = {site.job.cluster: site for site in sites}
    pairs = [(by_cluster[each.plan.job.cluster], each) for each in answers]
    searched = dict(worked_on(sizer.searched, pairs))
    better = {id(answer): searched[number] for number, answer in enumerate(answers)}
    return replace(sizing, clusters=tuple(_with(each, better, goal) for each in sizing.clusters))


class _Sizer:
    """Sizes one cluster after another; what does not depend on the cluster is made once."""

    def __init__(self, graph: OpGraph, goal: Goal, time_limit_s: float | None) -> None:
        self._graph = graph
        self._goal = goal
        self._time_limit_s = time_limit_s
        self._series: Series | None = None

    def sizes(self, site: Site) -> ClusterSizes:
        """The fewest nodes of a cluster, by quick plans."""
        return self._search(site).sizes()

    def searched(self, pair: tuple[Site, SizedPlan]) -> SizedPlan:
        """One of the plans with all configurations searched."""
        site, sized = pair
        return self._search(site).searched(sized)

    def _search(self, site: Site) -> NodeSearch:
        self._series = Series(self._graph, site.job, site.cluster, like=self._series)
        return NodeSearch(
            self._series,
            site.job,
            self._goal,
            most_nodes=site.most_nodes,
            deadline=Deadline(self._time_limit_s),
        )


def _answers(sizing: Sizing) -> Iterator[SizedPlan]:
    """The plans that are the answers, each once."""
    found: Iterable[SizedPlan | None] = (
        sizing.smallest,
        sizing.least_gpu_hours,
        sizing.cheapest,
    )
    yield from {id(each): each for each in found if each}.values()


def _open(sizing: Sizing) -> Iterator[SizedPlan]:
    """Late plans on whose nodes another one could be in time, and then be an answer."""
    smallest, fewest, cheapest = sizing.smallest, sizing.least_gpu_hours, sizing.cheapest
    for sized in (plan for each in sizing.clusters for plan in each.plans):
        if not sized.is_open(sizing.goal):
            continue
        share = sized.least_days / sized.days
        if (
            smallest is None
            or sized.devices <= smallest.devices
            or (fewest and share * sized.gpu_hours < fewest.gpu_hours)
            or (sized.usd and (not cheapest or share * sized.usd < (cheapest.usd or 0.0)))
        ):
            yield sized


def _with(sizes: ClusterSizes, better: dict[int, SizedPlan], goal: Goal) -> ClusterSizes:
    """A cluster with plans that were found for others of it."""
    plans = [better.get(id(plan), plan) for plan in sizes.plans]
    return sizes_of(sizes.cluster, sizes.device, plans, goal, sizes.reason)


def _told(sizes: ClusterSizes) -> str:
    """What is known of a cluster, in a few words."""
    if sizes.smallest is None:
        return f"{sizes.cluster}: {sizes.reason}"
    nodes = sizes.smallest.nodes
    return (
        f"{sizes.cluster}: {nodes} node{'s' if nodes > 1 else ''}, {sizes.smallest.days:.1f} days"
    )
