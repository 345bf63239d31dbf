"""The best plan of one configuration, with a lower bound of all its plans.

Bounds tell where to cut (``bounds``, ``partition``); each rank then fills its memory with columns
of its items (``mixing``), and the plan is valued exactly (``whole``). Where memory is short, the
seconds that a byte is worth at the fullest ranks become the next price: the bounds rise, and menus
answer it with columns that take less. It ends when plan and bound meet, or no new price is found.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from autoplan.search.pipeline.bounds import Bounds
from autoplan.search.pipeline.configs import Config
from autoplan.search.pipeline.dealing import stages_of
from autoplan.search.pipeline.family import ALL_SECONDS, Boundary, Family
from autoplan.search.pipeline.filling import Filler, Filling
from autoplan.search.pipeline.item_prices import ItemPricer, memory_prices
from autoplan.search.pipeline.model import Model
from autoplan.search.pipeline.path_bounds import PathBounds
from autoplan.search.pipeline.rank_rates import RankRates
from autoplan.search.pipeline.recut import Recut
from autoplan.search.pipeline.round_trips import RoundTrips, has_round_trips
from autoplan.search.pipeline.tied import tied_of
from autoplan.search.pipeline.whole import StageContent, WholeCosts, WholeValue, value_of_whole
from autoplan.search.regions.column import Column
from cost_models.critical_path import critical_path

TOLERANCE = 1e-3
"""How far from the best of all plans a search may end."""

_MOST_ROUNDS = 5
_PRICES_AT_ONCE = 4
_SAME_PRICE = 0.05
_MOST_REFILLS = 4
_REFINEMENTS = 3
_MOST_RECUTS = 8
_MOST_ALIKE = 4
_WIDE = 5e-3
"""Of a gap for which other cuts are worth trying."""

_SAFETY = 1.05
_TURN = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A plan of a configuration."""

    config: Config
    family: Family
    boundary: Boundary
    costs: WholeCosts
    stages: tuple[StageContent, ...]
    value: WholeValue

    @property
    def step_s(self) -> float:
        return self.value.step_s

    def columns(self, stage: int) -> Iterator[tuple[Column, str]]:
        """Column and region of each item of a stage."""
        content = self.stages[stage]
        keys = self.family.keys[content.first : content.stop]
        return zip(content.columns, keys, strict=True)


CostsAt = Callable[[Boundary], WholeCosts]


class ConfigSearch:
    """The search of one configuration, round by round.

    Args:
        family: the regions of the model and their menus.
        costs_at: what plans cost whose items meet in given placements.
        rates: what counts on the ranks of the configuration's schedule.
        starts: prices of memory that are worth a try before there is a plan, asked once.
    """

    def __init__(
        self,
        family: Family,
        config: Config,
        costs_at: CostsAt,
        rates: RankRates,
        starts: Callable[[], Sequence[float]] = tuple,
    ) -> None:
        self._family = family
        self._config = config
        self._costs_at = costs_at
        self._bound_s = 0.0
        self._best: Found | None = None
        self._tried: list[float] = []
        self._prices = [0.0]
        self._cuts: tuple[int, ...] | None = None
        self._fillers: list[Filler] = []
        self._rounds = 0
        self._is_cut = False
        self._is_done = False
        self._starts: Callable[[], Sequence[float]] | None = starts
        self._costs = costs_at(family.boundary(ALL_SECONDS))
        self._pricer = ItemPricer(costs=self._costs)
        self._bounds = self._bounds_of(rates)
        self._along: PathBounds | None = None
        self._trips: RoundTrips | None = None
        self._followed: Found | None = None

    @property
    def best(self) -> Found | None:
        """The fastest plan so far."""
        return self._best

    @property
    def bound_s(self) -> float:
        """No plan of the configuration is faster; infinite where none fits."""
        return min(self._bound_s, self._best.step_s) if self._best else self._bound_s

    @property
    def is_done(self) -> bool:
        """Whether another round would change nothing."""
        return self._is_done

    def advance(self, below_s: float = math.inf) -> None:
        """One more round: bounds at new prices of memory, new cuts, and a plan for them.

        Where the bound is ``below_s`` or more, no plan is made; the next call goes on from there.
        """
        if not self._tried:
            self._bound_s = max(0.0, self._free_bound_s())
            if self._bound_s >= below_s:
                return
        if not self._is_cut:
            self._cuts = self._cut(self._prices)
            self._rounds += 1
            self._is_cut = True
        if self._cuts is not None and self._bound_s >= below_s:
            return
        if self._cuts is not None and self._starts is not None:
            self._begin(self._starts())
            if self._bound_s >= below_s:
                return
        self._is_cut = False
        if self._cuts is not None and self._continues(self._cuts):
            return
        if self._cuts is not None:
            self._fit_alike(self._cuts)
        self._is_done = True
        self._bounds.forget()
        self._fillers.clear()
        self._along = self._trips = None

    def _begin(self, prices: Sequence[float]) -> None:
        """Raises the bound by prices that are likely, and makes cuts for them."""
        self._starts = None
        self._prices = self._new_prices(prices)
        if self._prices:
            self._cuts = self._cut(self._prices)

    def _continues(self, cuts: tuple[int, ...]) -> bool:
        """Plans for new cuts, and what to try next; whether there is anything."""
        if not self._fillers:
            self._fillers = [self._filler(self._family.boundary(ALL_SECONDS))]
        for filler in self._fillers:
            filler.follow(self._pricer)
            for price_s in self._prices:
                filler.add(price_s)
        fillings = [self._fill(filler, cuts)[0] for filler in self._fillers]
        if self._best is None:
            self._bounds.weigh_passing()
        worth = [filling.price_s for row in fillings for filling in row]
        near = self._bounds.near(cuts) if max(worth) > 0 else []
        self._prices = self._new_prices([*(price for price in worth if price > 0), *near])
        if self._turns():
            self._prices = [*self._tried[-_PRICES_AT_ONCE:], *self._prices]
        if self._is_close() or not self._prices or self._rounds == _MOST_ROUNDS:
            cuts = self._refined(cuts)
            if self._bound_s < math.inf:
                self._follow_path(cuts)  # round trips, which take long, only here
                self._recut(cuts)
            return False
        if len(self._fillers) == 1:
            self._fillers += self._others(self._fillers[0].boundary, max(self._prices))
        return True

    def smallest(self) -> WholeValue:
        """A plan that takes little memory: items shared evenly, with their leanest columns."""
        boundary = self._family.boundary(ALL_SECONDS)
        filler, count = self._filler(boundary), len(self._family.keys)
        cuts = [count * rank // self._config.pp for rank in range(self._config.pp + 1)]
        columns = [filler.leanest(first, stop) for first, stop in itertools.pairwise(cuts)]
        return value_of_whole(filler.costs, stages_of(self._bounds.rates.row, cuts, columns))

    def _turns(self) -> bool:
        """Whether messages of the best plan outlast compute where that was not thought, or the
        other way round; from here on it is."""
        if self._best is None:
            return False
        clock, loads = self._costs.clock, self._best.value.loads
        forward, backward = clock.hides(max(loads, key=lambda load: load.forward_s))
        known = self._pricer
        if max(abs(forward - known.hides_forward), abs(backward - known.hides_backward)) < _TURN:
            return False
        self._pricer = replace(known, hides_forward=forward, hides_backward=backward)
        return True

    def finish(self) -> Found | None:
        """The best plan after all rounds: the same whatever else is searched."""
        while not self._is_done:
            self.advance()
        return self._best

    def _bounds_of(self, rates: RankRates) -> Bounds:
        family = self._family
        model = Model(
            keys=family.keys,
            menus=family.free,
            elements=family.elements,
            tied=tied_of(family.menus) if self._config.pp == 1 else (),
            modes=family.modes,
        )
        least = replace(
            self._costs,
            cuts=family.least_crossings,
            tied=family.most_tied,
            apart=family.least_apart,
        )
        return Bounds(least, model, rates)

    def _free_bound_s(self) -> float:
        """What no plan is faster than, memory aside."""
        self._tried, self._prices = self._prices, []
        self._bounds.add(self._tried, self._pricer)
        found = self._bounds.cuts(fitting=False)
        return found.value + self._bounds.head_s if found else math.inf

    def _cut(self, prices: Sequence[float]) -> tuple[int, ...] | None:
        """Raises the bound by prices of memory; the cuts that have it."""
        self._tried += prices
        self._bounds.add(prices, self._pricer)
        found = self._bounds.cuts()
        if found is None:
            self._bound_s = math.inf
            return None
        self._bound_s = max(self._bound_s, found.value + self._bounds.head_s)
        if not has_round_trips(self._config.shape):
            self._follow_path(found.cuts)
        return found.cuts

    def _refined(self, cuts: tuple[int, ...]) -> tuple[int, ...]:
        """Raises the bound by prices of every rank's own; the cuts that have it."""
        for _ in range(_REFINEMENTS):
            if self._is_close():
                break
            self._bounds.refine(cuts, self._pricer)
            found = self._bounds.cuts()
            if found is None:
                self._bound_s = math.inf
                break
            self._bound_s = max(self._bound_s, found.value + self._bounds.head_s)
            if found.cuts == cuts:
                break
            cuts = found.cuts
        return cuts

    def _follow_path(self, cuts: Sequence[int]) -> None:
        """Raises the bound by the critical path of the best plan, in a pipeline: other plans are
        no shorter than it is for them, and messages that hold up the schedule are in it."""
        if self._config.pp == 1 or self._is_close():
            return
        if has_round_trips(self._config.shape):
            self._go_round(cuts)
            return
        if self._best is None:
            return
        if self._along is None or self._followed is not self._best:
            self._followed = self._best
            value = self._best.value
            tails_s = [each.tail_s for each in value.seconds]
            path = critical_path(self._config.shape, value.sent, tails_s)
            self._along = PathBounds(self._bounds, path)
        self._along.add(self._bounds.best_prices(cuts), self._pricer)
        self._bound_s = max(self._bound_s, self._along.bound_s(self._best.step_s))

    def _go_round(self, cuts: Sequence[int]) -> None:
        """Raises the bound by what neighbour ranks wait for each other."""
        if self._trips is None:
            self._trips = RoundTrips(self._bounds)
        self._trips.add(self._bounds.best_prices(cuts), self._pricer)
        below_s = self._best.step_s if self._best else math.inf
        self._bound_s = max(self._bound_s, self._trips.bound_s(self._bound_s, below_s, cuts))

    def _filler(self, boundary: Boundary) -> Filler:
        model = Model(
            keys=self._family.keys,
            menus=self._family.fixed(boundary),
            elements=self._family.elements,
        )
        return Filler(self._costs_at(boundary), model, self._bounds, boundary)

    def _others(self, known: Boundary, price_s: float) -> Iterator[Filler]:
        """A filler for the boundary placements that are good where memory is dear, if others."""
        rates = self._bounds.rates.rates("share", 0, price_s, of_blocks=True)
        dear = self._family.boundary(memory_prices(rates))
        if dear != known:
            yield self._filler(dear)

    def _recut(self, cuts: tuple[int, ...]) -> None:
        """Plans for cuts that take in what plans were seen to take."""
        if self._config.pp == 1 or self._config.stages_per_rank > 1:
            return
        recut, seen, filler = Recut(bounds=self._bounds), set[tuple[int, ...]](), self._fillers[0]
        while cuts not in seen and len(seen) < _MOST_RECUTS and not self._is_close(_WIDE):
            seen.add(cuts)
            value = self._fill(filler, cuts)[1]
            cuts = (recut.after(cuts, value) if value else None) or cuts

    def _fit_alike(self, cuts: tuple[int, ...]) -> None:
        """Where the blocks of a rank all run alike: plans with the best column that fits, on the
        ranks that a step waits for, and the bound of the path through them."""
        for _ in range(_MOST_ALIKE):
            if self._best is None or self._along is None or self._is_close():
                return
            known, ranks = self._best, self._along.alike()
            if not ranks:
                return
            filler = next(each for each in self._fillers if each.boundary == known.boundary)
            for rank in ranks:
                filler.add_alike(rank, cuts[rank], cuts[rank + 1])
            self._fill(filler, cuts)
            self._follow_path(cuts)
            if self._best is known:
                self._along.add_alike(ranks, self._pricer)
                self._bound_s = max(self._bound_s, self._along.bound_s(known.step_s))
                return

    def _fill(
        self, filler: Filler, cuts: tuple[int, ...]
    ) -> tuple[list[Filling], WholeValue | None]:
        """Fills all ranks, and keeps the plan if it is the best that fits; its value too, where
        columns were found for all.

        What a rank holds at its worst moment can be more than what it was filled with, where its
        stages are not alike; then it is filled again with so much less.
        """
        ranks, limit_bytes = range(len(cuts) - 1), self._costs.memory.limit_bytes
        fillings = [filler.fill(rank, cuts[rank], cuts[rank + 1]) for rank in ranks]
        tried = list(fillings)
        tighter, value = [0.0] * len(fillings), None
        for _ in range(_MOST_REFILLS):
            if not all(filling.columns for filling in tried):
                break
            value = self._offer(filler, cuts, tried)
            over = [memory.total - limit_bytes for memory in value.memory]
            if max(over) <= 0:
                break
            for rank in ranks:
                if over[rank] > 0:
                    tighter[rank] += _SAFETY * over[rank]
                    tried[rank] = filler.fill(rank, cuts[rank], cuts[rank + 1], tighter[rank])
        return fillings, value

    def _offer(self, filler: Filler, cuts: tuple[int, ...], fillings: list[Filling]) -> WholeValue:
        """The value of a plan, which is kept if it is the best that fits."""
        stages = stages_of(self._bounds.rates.row, cuts, [filling.columns for filling in fillings])
        value = value_of_whole(filler.costs, stages)
        best_s = self._best.step_s if self._best else math.inf
        if value.fits(self._costs.memory.limit_bytes) and value.step_s < best_s:
            self._best = Found(
                config=self._config,
                family=self._family,
                boundary=filler.boundary,
                costs=filler.costs,
                stages=stages,
                value=value,
            )
        return value

    def _is_close(self, tolerance: float = TOLERANCE / 2) -> bool:
        return self._best is not None and self._bound_s >= self._best.step_s * (1 - tolerance)

    def _new_prices(self, prices: Iterable[float]) -> list[float]:
        """Prices unlike those that were tried, the highest first; few."""
        found: list[float] = []
        for price in sorted(set(prices), reverse=True):
            known = (*self._tried, *found)
            if all(abs(price - other) > _SAME_PRICE * max(price, other) for other in known):
                found.append(price)
        step = max(1, len(found) / _PRICES_AT_ONCE)
        return [found[int(number * step)] for number in range(min(len(found), _PRICES_AT_ONCE))]
