"""Random problems of the search over pipelines, small enough that all their plans can be tried.

A problem is a row of items with explicit menus (a few columns for each region and each placement
of what crosses), a configuration, a cluster of the profiles and a memory limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from autoplan.search.pipeline.configs import Config
from autoplan.search.pipeline.costs import whole_costs
from autoplan.search.pipeline.dealing import stages_of
from autoplan.search.pipeline.family import Family
from autoplan.search.pipeline.objectives import Row, objectives
from autoplan.search.pipeline.rank_rates import RankRates
from autoplan.search.pipeline.solve import ConfigSearch
from autoplan.search.pipeline.whole import WholeCosts, value_of_whole
from autoplan.search.pricing import Pricing
from hardware_profiles.load import load
from hardware_profiles.spec import ClusterSpec
from tests.unit.joint_draws import random_family, random_kinds
from tests.unit.joint_families import CROSSING, ListedFamily

PROFILES = ("dgx-h100", "a100-pcie-80g", "rtx4090-box", "dgx-v100", "gb200-nvl72")
UNLIMITED_BYTES = 2**55


@dataclass(frozen=True, kw_only=True)
class JointProblem:
    """One configuration of a row of items, with a memory limit."""

    family: ListedFamily
    config: Config
    cluster: ClusterSpec
    optimizer: str
    precision: str
    input_bytes: float
    limit_bytes: int
    syncs_statistics: bool = False

    @property
    def row(self) -> Row:
        return Row(is_block=self.family.is_block, shape=self.config.shape)

    @property
    def rates(self) -> RankRates:
        return RankRates(objectives=objectives(self.config.shape), row=self.row)

    @cached_property
    def pricing(self) -> Pricing:
        """What is read of the prices of a job."""
        found: Any = SimpleNamespace(
            job=SimpleNamespace(
                precision=self.precision,
                optimizer=self.optimizer,
                gpus_per_node=self.cluster.gpus_per_node,
            ),
            cluster=self.cluster,
            buffer_bytes=0,
            trained_elements=(self._most_elements,),
            syncs_statistics=self.syncs_statistics,
            input_bytes=lambda dp: self.input_bytes / dp,
            limit_bytes=self.limit_bytes,
        )
        return cast(Pricing, found)

    @property
    def _most_elements(self) -> float:
        """That learn, whatever is chosen."""
        family = self.family
        apart = max(sum(one.unit.trained_elements for one in way.apart) for way in family.ways)
        return apart + sum(family.elements[key].trained for key in family.keys)

    def costs(self, way: int) -> WholeCosts:
        """The costs of plans with one placement of what crosses."""
        return self.costs_at({CROSSING: way})

    def costs_at(self, boundary: Any) -> WholeCosts:
        return whole_costs(self.pricing, cast(Family, self.family), self.config, boundary)

    def search(self, starts: Sequence[float] = ()) -> ConfigSearch:
        """Of this configuration, with prices of memory to begin with."""
        family = cast(Family, self.family)
        return ConfigSearch(family, self.config, self.costs_at, self.rates, lambda: starts)


@cache
def cluster_named(name: str) -> ClusterSpec:
    return load(name)


def random_problem(
    seed: int, draw_config: Callable[[Random], Config], *, most_items: int = 6
) -> JointProblem:
    """A problem that depends on its seed alone.

    Args:
        draw_config: of the configuration.
        most_items: of the row; it has as many as there are stages at least.
    """
    draw = Random(seed)
    config = draw_config(draw)
    cluster = cluster_named(draw.choice(PROFILES))
    is_interleaved = config.stages_per_rank > 1
    kinds = random_kinds(draw, config, most_items, is_uniform=is_interleaved)
    free = JointProblem(
        family=random_family(draw, config, cluster, kinds),
        config=config,
        cluster=cluster,
        optimizer=draw.choice(("adamw", "sgd")),
        precision=draw.choice(("bf16", "fp32")),
        input_bytes=draw.choice((0.0, 2.0**20)),
        limit_bytes=UNLIMITED_BYTES,
    )
    limited = replace(free, limit_bytes=_limit(draw, free))
    device = replace(cluster.device, split_gradient_s=draw.choice((None, 1e-3, 3e-2)))
    return replace(limited, cluster=replace(cluster, device=device))


def _limit(draw: Random, problem: JointProblem) -> int:
    """None to speak of, or the peak of a random plan, exactly or about."""
    kind = draw.choice(("none", "exact", "exact", "about"))
    if kind == "none":
        return UNLIMITED_BYTES
    peaks = sorted(_random_peak(draw, problem) for _ in range(8))
    chosen = peaks[draw.choice((0, 0, 1, 3))]
    return chosen if kind == "exact" else int(chosen * draw.uniform(0.85, 1.1))


def _random_peak(draw: Random, problem: JointProblem) -> int:
    """The fullest rank of some plan."""
    family = problem.family
    number = draw.randrange(len(family.ways))
    cuts = draw.choice(all_cuts(problem.row))
    menus = family.ways[number].columns
    columns = [
        [draw.choice(menus[key]) for key in family.keys[first:stop]]
        for first, stop in pairwise(cuts)
    ]
    stages = stages_of(problem.row, cuts, columns)
    value = value_of_whole(problem.costs(number), stages)
    return max(memory.total for memory in value.memory)


def all_cuts(row: Row) -> list[tuple[int, ...]]:
    """Every way to cut a row into one range for each rank."""
    found = [(0,)]
    for rank in range(row.shape.ranks):
        found = [(*cuts, cuts[-1] + length) for cuts in found for length in row.lengths(rank)]
    return [cuts for cuts in found if cuts[-1] == len(row.is_block)]
