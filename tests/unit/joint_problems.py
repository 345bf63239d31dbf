"""Random problems of the search over pipelines, small enough that all their plans can be tried.

A problem is a row of items with explicit menus (a few columns for each region and each placement
of what crosses), a configuration, a cluster of the profiles and a memory limit. Scales are drawn so
that messages, compute, weights and activations take turns in being what counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.configs import Config
from autoplan.search.pipeline.costs import whole_costs
from autoplan.search.pipeline.dealing import stages_of
from autoplan.search.pipeline.family import Family
from autoplan.search.pipeline.item_prices import Elements
from autoplan.search.pipeline.loads import Unit
from autoplan.search.pipeline.objectives import Row, dealt, objectives
from autoplan.search.pipeline.rank_rates import RankRates
from autoplan.search.pipeline.solve import ConfigSearch
from autoplan.search.pipeline.whole import Apart, WholeCosts, value_of_whole
from autoplan.search.pricing import Pricing
from autoplan.search.regions.column import Column, Least, Prices, value_of
from autoplan.search.regions.menus import Crossing
from hardware_profiles.load import load
from hardware_profiles.spec import ClusterSpec

PROFILES = ("dgx-h100", "a100-pcie-80g", "rtx4090-box", "dgx-v100", "gb200-nvl72")
UNLIMITED_BYTES = 2**55
CROSSING = "crossing"


@dataclass(frozen=True, slots=True)
class ListedMenu:
    """All columns of a region, one by one."""

    columns: tuple[Column, ...]

    def least_operator_bytes(self) -> float:
        return min(column.operator_bytes for column in self.columns)

    def least(self, prices: Prices) -> Least:
        best = min(self.columns, key=lambda column: value_of(column, prices))
        return Least(value_of(best, prices), best)

    def least_values(self, prices: Sequence[Prices]) -> npt.NDArray[np.float64]:
        return np.array([self.least(at).value for at in prices])


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One placement of what crosses between items: columns, crossing bytes, shared parameters."""

    columns: Mapping[str, tuple[Column, ...]]
    cuts: tuple[Crossing, ...]
    tied: tuple[tuple[tuple[int, ...], float], ...]
    apart: tuple[Apart, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ListedFamily:
    """What ``Family`` offers, with menus that are lists."""

    keys: tuple[str, ...]
    is_block: tuple[bool, ...]
    elements: Mapping[str, Elements]
    ways: tuple[Way, ...]
    shared_s: float

    @cached_property
    def counts(self) -> Mapping[str, int]:
        return Counter(self.keys)

    @cached_property
    def free(self) -> Mapping[str, ListedMenu]:
        return {
            key: ListedMenu(tuple(column for way in self.ways for column in way.columns[key]))
            for key in self.counts
        }

    def fixed(self, boundary: Mapping[str, int]) -> Mapping[str, ListedMenu]:
        way = self.ways[boundary[CROSSING]]
        return {key: ListedMenu(way.columns[key]) for key in self.counts}

    def tied(self, boundary: Mapping[str, int]) -> tuple[tuple[tuple[int, ...], float], ...]:
        return self.ways[boundary[CROSSING]].tied

    def apart(self, boundary: Mapping[str, int]) -> tuple[Apart, ...]:
        return self.ways[boundary[CROSSING]].apart

    @property
    def least_apart(self) -> tuple[Apart, ...]:
        return min((way.apart for way in self.ways), key=_apart_elements)

    def crossings(self, boundary: Mapping[str, int]) -> tuple[Crossing, ...]:
        return self.ways[boundary[CROSSING]].cuts

    @property
    def least_crossings(self) -> tuple[Crossing, ...]:
        return tuple(
            Crossing(
                forward_bytes=min(cut.forward_bytes for cut in cuts),
                backward_bytes=min(cut.backward_bytes for cut in cuts),
            )
            for cuts in zip(*(way.cuts for way in self.ways), strict=True)
        )

    @property
    def most_tied(self) -> tuple[tuple[tuple[int, ...], float], ...]:
        return max((way.tied for way in self.ways), key=lambda tied: [one[1] for one in tied])

    def boundary(self, prices: Prices) -> Mapping[str, int]:
        values = [
            sum(
                count * ListedMenu(way.columns[key]).least(prices).value
                for key, count in self.counts.items()
            )
            for way in self.ways
        ]
        return {CROSSING: values.index(min(values))}

    @property
    def menus(self) -> Any:
        """What is read of the menus of a real family."""
        tied = [way.tied for way in self.ways]
        return SimpleNamespace(
            stack=SimpleNamespace(
                items=tuple(
                    SimpleNamespace(kind="kind" if block else "") for block in self.is_block
                )
            ),
            boundaries=(SimpleNamespace(name=CROSSING, placements=tuple(range(len(self.ways)))),),
            shared_parameters=tuple(
                SimpleNamespace(
                    name=CROSSING,
                    items=items,
                    trainable=True,
                    placements=tuple(range(len(self.ways))),
                    elements=tuple(way[at][1] for way in tied),
                )
                for at, (items, _) in enumerate(tied[0])
            ),
            apart=frozenset(),
            keys=self.keys,
            fixed=lambda key, given: self.fixed(given)[key],
            shared_s=self.shared_s,
            crossing_bytes=self.crossings,
        )


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
            trained_elements=(),
            input_bytes=lambda dp: self.input_bytes / dp,
            limit_bytes=self.limit_bytes,
        )
        return cast(Pricing, found)

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
    kinds = _kinds(draw, config, most_items, is_uniform=is_interleaved)
    free = JointProblem(
        family=_family(draw, config, cluster, kinds),
        config=config,
        cluster=cluster,
        optimizer=draw.choice(("adamw", "sgd")),
        precision=draw.choice(("bf16", "fp32")),
        input_bytes=draw.choice((0.0, 2.0**20)),
        limit_bytes=UNLIMITED_BYTES,
    )
    return replace(free, limit_bytes=_limit(draw, free))


def _kinds(draw: Random, config: Config, most_items: int, *, is_uniform: bool) -> list[str]:
    """The region of each item; those of parts of the root begin with ``root``."""
    stages = config.pp * config.stages_per_rank
    count = draw.randint(stages, max(stages, most_items))
    while is_uniform:
        before, after = draw.randint(0, 1), draw.randint(0, 1)
        blocks = ["block"] * draw.randint(2, max(stages, most_items) - before)
        kinds = ["root0"] * before + blocks + ["root9"] * after
        if dealt([kind == "block" for kind in kinds], stages):
            return kinds
    found = [draw.choice(("block", "block", "other", "root")) for _ in range(count)]
    return [f"root{n}" if kind == "root" else kind for n, kind in enumerate(found)]


def _spread(draw: Random, low: float, high: float) -> float:
    """A power of ten between those of two exponents."""
    return 10 ** draw.uniform(low, high)


def _family(draw: Random, config: Config, cluster: ClusterSpec, kinds: list[str]) -> ListedFamily:
    scale = float(round(_spread(draw, 2, 8.5)))
    kept_scale = scale * 16 * _spread(draw, -1.5, 1)
    second = _seconds_of(config, cluster, scale) * _spread(draw, -1.5, 1.5)
    regions = list(dict.fromkeys(kinds))
    readers = tuple(n for n, kind in enumerate(kinds) if kind.startswith("root"))
    ties = len(readers) > 1 and draw.random() < 0.5
    tied = float(round(scale * _spread(draw, -1, 0.5))) if ties else 0.0
    own = {key: float(round(scale * _spread(draw, -1, 0.5))) for key in regions}
    frozen = {
        key: float(round(scale * _spread(draw, -1, 0.5))) if draw.random() < 0.3 else 0.0
        for key in regions
    }
    for key in regions:
        own[key] *= draw.random() > 0.15
    apart = _apart(Random(f"apart {scale} {kinds}"), kinds, scale)
    unit = Unit(
        trained_elements=tied + sum(one.unit.trained_elements for one in apart),
        frozen_elements=sum(one.unit.frozen_elements for one in apart),
        count=1,
    )
    elements = _elements(own, frozen, (tied, unit), config.tp)
    hop_s = second * _spread(draw, -2, 0.5) * draw.choice((0.0, 1.0, 1.0))
    crossing = hop_s * cluster.inter_node.bytes_per_s
    ways = []
    for _ in range(draw.choice((1, 1, 2))):
        share = draw.choice((1.0, 1.0 / config.tp))
        columns = {
            key: tuple(
                _column(
                    draw,
                    second=second,
                    kept=kept_scale,
                    own=own[key],
                    frozen=frozen[key],
                    tied=tied * share * key.startswith("root"),
                    tp=config.tp,
                )
                for _ in range(draw.randint(1, 4))
            )
            for key in regions
        }
        cuts = [
            Crossing(
                forward_bytes=float(round(share * crossing * draw.uniform(0.2, 1))),
                backward_bytes=float(round(share * crossing * draw.choice((0.0, 0.5, 1)))),
            )
            for _ in kinds[1:]
        ]
        if config.stages_per_rank > 1:
            inside = [n for n, pair in enumerate(pairwise(kinds)) if pair[0] == pair[1]]
            for number in inside:
                cuts[number] = cuts[inside[0]]
        ways.append(
            Way(
                columns=columns,
                cuts=tuple(cuts),
                tied=((readers, tied * share),) if ties else (),
                apart=tuple(_shared(one, share) for one in apart),
            )
        )
    return ListedFamily(
        keys=tuple(kinds),
        is_block=tuple(not kind.startswith("root") for kind in kinds),
        elements=elements,
        ways=tuple(ways),
        shared_s=draw.choice((0.0, 0.0, second * draw.random())),
    )


def _apart(draw: Random, kinds: list[str], scale: float) -> list[Apart]:
    """Up to two parameters, whole, that a block reads and other items too."""
    blocks = [n for n, kind in enumerate(kinds) if not kind.startswith("root")]
    found = []
    for _ in range(draw.choice((0, 0, 1, 2)) if blocks and len(kinds) > 1 else 0):
        block = draw.choice(blocks)
        others = [n for n in range(len(kinds)) if n != block]
        items = sorted([block, *draw.sample(others, draw.randint(1, len(others)))])
        elements, trains = float(round(scale * _spread(draw, -1, 0.5))), draw.random() < 0.7
        unit = Unit(
            trained_elements=elements * trains, frozen_elements=elements * (not trains), count=1
        )
        found.append(Apart(items=tuple(items), unit=unit))
    return found


def _shared(one: Apart, share: float) -> Apart:
    unit = Unit(
        trained_elements=one.unit.trained_elements * share,
        frozen_elements=one.unit.frozen_elements * share,
        count=1,
    )
    return replace(one, unit=unit)


def _apart_elements(apart: tuple[Apart, ...]) -> float:
    return sum(one.unit.trained_elements + one.unit.frozen_elements for one in apart)


def _seconds_of(config: Config, cluster: ClusterSpec, elements: float) -> float:
    """Seconds of a message of so many elements, at least a microsecond."""
    from autoplan.search.pipeline.weight_messages import WeightMessages

    messages = WeightMessages(config, "bf16", cluster.gpus_per_node, cluster)
    unit = Unit(trained_elements=elements, frozen_elements=0.0, count=1)
    return max(1e-6, messages.gather_s(unit), messages.reduce_s(unit))


def _elements(
    own: Mapping[str, float], frozen: Mapping[str, float], common: tuple[float, Unit], tp: int
) -> dict[str, Elements]:
    """Of each region; parts of the root have tied elements beside their own.

    Args:
        common: the tied elements, and all that the root has beside what its parts have alone.
    """
    tied, unit = common
    root = [key for key in own if key.startswith("root")]
    all_trained = sum(own[key] for key in root) + unit.trained_elements
    all_frozen = sum(frozen[key] for key in root) + unit.frozen_elements
    return {
        key: Elements(
            trained=(trained := own[key] + tied * (key in root)),
            frozen=frozen[key],
            least_trained=trained / tp,
            least_frozen=frozen[key] / tp,
            unit_trained=all_trained if key in root else trained,
            unit_frozen=all_frozen if key in root else frozen[key],
        )
        for key in own
    }


def _column(
    draw: Random, *, second: float, kept: float, own: float, frozen: float, tied: float, tp: int
) -> Column:
    share = draw.choice((1.0, 1.0 / tp, draw.uniform(1.0 / tp, 1.0)))
    forward_s = second * _spread(draw, -0.7, 0.3)
    kept_bytes = float(round(kept * _spread(draw, -1, 0)))
    again = draw.random() < 0.4
    weight_s = forward_s * draw.uniform(0.3, 1.2) * (own + tied > 0)
    input_s = forward_s * draw.uniform(0.3, 1.2) + again * forward_s
    sends = draw.choice((0.0, draw.random()))
    working_bytes = float(round(kept_bytes * draw.random()))
    return Column(
        choices=(draw.randrange(10**9),),
        forward_s=forward_s,
        backward_input_s=input_s,
        backward_weight_s=weight_s,
        kept_bytes=float(round(kept_bytes * 0.1)) if again else kept_bytes,
        recomputed_bytes=kept_bytes if again else 0.0,
        operator_bytes=working_bytes,
        working_bytes=working_bytes,
        trained_elements=own * share + tied,
        frozen_elements=frozen * share,
        forward_messages_s=sends * forward_s * 0.5,
        backward_messages_s=sends * (input_s + weight_s) * 0.5,
    )


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
