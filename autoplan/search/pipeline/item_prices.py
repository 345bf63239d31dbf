"""Prices at which menus are asked for the items of a rank, so that values bound its objective.

An objective is linear in a rank's seconds. Memory enters by a price on bytes, messages over ``dp``
by prices on elements: their seconds are concave in the elements of a unit, so the chord between the
fewest and the most that a block can have is never above them; nor is, for the parts of the root
that a stage has, which move as one, the line from nothing to the whole root. What shows of messages
beside compute is ``max((1 - e) messages, messages - e window)``; any mean of both sides is a lower
bound: the first where compute outlasts them (it *hides* them), the second where they outlast it.
Of the sums of ZeRO 0 the last bucket is beside nothing: its least share counts in the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

from autoplan.search.pipeline.loads import Unit
from autoplan.search.pipeline.whole import WholeCosts
from autoplan.search.regions.column import Prices


@dataclass(frozen=True, kw_only=True, slots=True)
class Elements:
    """Parameters of a region: all of them, and the fewest that one rank can have.

    Attributes:
        unit_trained, unit_frozen: of the largest unit that it can be part of: itself if it is a
            block, else the whole root.
    """

    trained: float
    frozen: float
    least_trained: float
    least_frozen: float
    unit_trained: float
    unit_frozen: float

    @property
    def least(self) -> Unit:
        """The fewest, as one unit."""
        return Unit(trained_elements=self.least_trained, frozen_elements=self.least_frozen, count=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """What counts in one objective of one rank.

    Attributes:
        forward, backward_input, backward_weight: weights of seconds of a microbatch.
        head, tail: weights of what comes once a step, before and after.
        optimizer: weight of the optimizer's seconds.
        byte: price of a byte that the rank holds during its step.
        kept_byte: price of a byte kept of one microbatch.
        passing_byte: price of a byte that a block makes again.
    """

    forward: float
    backward_input: float
    backward_weight: float
    head: float
    tail: float
    optimizer: float
    byte: float = 0.0
    kept_byte: float = 0.0
    passing_byte: float = 0.0


def summed(parts: Iterable[Rates]) -> Rates:
    """What counts in a sum of objectives."""
    members = tuple(parts)
    return Rates(
        **{name.name: sum(getattr(p, name.name) for p in members) for name in fields(Rates)}
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemPrices:
    """Prices of one item, and what it costs whatever its column is."""

    prices: Prices
    fixed: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chord:
    """Seconds of a message: ``fixed_s + element_s * elements``, no more than they are."""

    fixed_s: float
    element_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shown:
    """Weights of a unit's messages, and those of seconds less what hides messages."""

    forward: float
    backward_input: float
    backward_weight: float
    gathers: float
    reductions: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemPricer:
    """Prices items of one configuration.

    Attributes:
        hides_forward, hides_backward: the weight of the first side, from 0 to 1, in the bound of
            what shows under forward and backward.
    """

    costs: WholeCosts
    hides_forward: float = 1.0
    hides_backward: float = 1.0

    def prices(
        self,
        rates: Rates,
        elements: Elements,
        *,
        is_block: bool,
        is_widest: bool = False,
        is_late: bool = False,
    ) -> ItemPrices:
        """Prices of a region.

        Args:
            is_block: false for a part of the root.
            is_widest: its operator at work is what counts of all that pass.
            is_late: it counts when its backward is over: its gradients wait, and what it kept of
                one microbatch is gone where a rank has one stage.
        """
        clock, memory = self.costs.clock, self.costs.memory
        seconds = [rates.forward, rates.backward_input, rates.backward_weight]
        element_s, frozen_element_s, fixed = rates.optimizer * clock.optimizer_s, 0.0, 0.0
        if clock.stage.shards_states:
            shown = self._shown_messages(rates, is_block=is_block)
            seconds = [shown.forward, shown.backward_input, shown.backward_weight]
            line = self._chord if is_block else self._part
            gather, reduce = line(elements, gathers=True), line(elements)
            fixed = shown.gathers * gather.fixed_s + shown.reductions * reduce.fixed_s
            frozen_element_s = shown.gathers * gather.element_s
            element_s += frozen_element_s + shown.reductions * reduce.element_s
        else:
            shown, hidden = self._shown_sum(rates)
            seconds[1:] = rates.backward_input - hidden, rates.backward_weight - hidden
            element_s += shown * clock.messages.sum_per_element_s
        element_s += seconds[2] * self.costs.split_element_s
        gone = is_late and self.costs.config.stages_per_rank == 1
        held_bytes = memory.held_per_trained + memory.trained.gradients_made * is_late
        return ItemPrices(
            prices=Prices(
                forward_s=seconds[0],
                backward_input_s=seconds[1],
                backward_weight_s=seconds[2],
                kept_bytes=max(0.0, rates.kept_byte - rates.byte * gone),
                recomputed_bytes=rates.passing_byte * is_block,
                working_bytes=rates.byte * is_widest,
                trained_elements=element_s + rates.byte * held_bytes,
                frozen_elements=frozen_element_s + rates.byte * memory.held_per_frozen,
            ),
            fixed=fixed,
        )

    def forward_weight(self, rates: Rates) -> float:
        """How often a second of a stage's forward counts that is in none of its items."""
        if not self.costs.clock.stage.shards_states:
            return rates.forward
        return self._shown_messages(rates, is_block=True).forward

    def least_head_s(self, elements: Elements, *, is_block: bool) -> float:
        """What shows at least of a region's gather at the begin of a step."""
        stage = self.costs.clock.stage
        if not stage.gathers_per_step:
            return 0.0
        shown = 1 - self.costs.clock.overlap_efficiency if is_block else 1.0
        return shown * self.costs.clock.messages.gather_s(elements.least)

    def _shown_messages(self, rates: Rates, *, is_block: bool) -> _Shown:
        """How often messages count, and what is left of the seconds that they hide under."""
        stage = self.costs.clock.stage
        again, scatters = stage.gathers_per_microbatch // 2, stage.reductions_per_microbatch
        under_forward = again * rates.forward + stage.gathers_per_step * rates.head
        under_backward = bool(again or scatters) * rates.backward_input
        under_backward += stage.reductions_per_step * rates.tail
        backward = min(rates.backward_input, rates.backward_weight)
        shown_forward, hidden_forward = self._sides(
            self.hides_forward, rates.forward, under_forward
        )
        shown_backward, hidden_backward = self._sides(self.hides_backward, backward, under_backward)
        if not is_block:
            shown_forward = shown_backward = 1.0
        reductions = scatters * rates.backward_input + stage.reductions_per_step * rates.tail
        return _Shown(
            forward=rates.forward - hidden_forward,
            backward_input=rates.backward_input - hidden_backward,
            backward_weight=rates.backward_weight - hidden_backward,
            gathers=under_forward * shown_forward + again * rates.backward_input * shown_backward,
            reductions=reductions * shown_backward,
        )

    def _shown_sum(self, rates: Rates) -> tuple[float, float]:
        """How often the sum of gradients counts, and the seconds of a backward that hide it."""
        clock = self.costs.clock
        counted = min(rates.backward_input, rates.backward_weight)
        shown, hidden = self._sides(self.hides_backward, counted, rates.tail)
        return rates.tail * (shown + (1 - shown) * clock.least_last_share), hidden

    def _sides(self, hides: float, counted: float, under: float) -> tuple[float, float]:
        """How much of messages shows, and of the seconds that they run under is hidden.

        Seconds count so often, and messages run so often under them.
        """
        outlasts = min(1 - hides, counted / (self.costs.clock.overlap_efficiency * under or 1.0))
        efficiency = self.costs.clock.overlap_efficiency
        return 1 - efficiency * (1 - outlasts), efficiency * outlasts * under

    def _part(self, elements: Elements, *, gathers: bool = False) -> _Chord:
        """A root part's share of a message of the whole root; what is less of it takes longer."""
        unit = Unit(
            trained_elements=elements.unit_trained, frozen_elements=elements.unit_frozen, count=1
        )
        counted = unit.trained_elements + gathers * unit.frozen_elements
        seconds = self._seconds_of(gathers)(unit)
        return _Chord(fixed_s=0.0, element_s=seconds / counted if counted else 0.0)

    def _seconds_of(self, gathers: bool) -> Callable[[Unit], float]:
        messages = self.costs.clock.messages
        return messages.gather_s if gathers else messages.reduce_s

    def _chord(self, elements: Elements, *, gathers: bool = False) -> _Chord:
        seconds_of = self._seconds_of(gathers)
        ends = (
            Unit(trained_elements=trained, frozen_elements=frozen, count=1)
            for trained, frozen in (
                (elements.least_trained, elements.least_frozen),
                (elements.trained, elements.frozen),
            )
        )
        low, high = ends
        counted = [unit.trained_elements + gathers * unit.frozen_elements for unit in (low, high)]
        low_s, high_s = seconds_of(low), seconds_of(high)
        if counted[1] <= counted[0]:
            return _Chord(fixed_s=min(low_s, high_s), element_s=0.0)
        element_s = (high_s - low_s) / (counted[1] - counted[0])
        return _Chord(fixed_s=low_s - element_s * counted[0], element_s=element_s)


def memory_prices(rates: Rates) -> Prices:
    """Prices of seconds and of kept bytes alone."""
    return Prices(
        forward_s=rates.forward,
        backward_input_s=rates.backward_input,
        backward_weight_s=rates.backward_weight,
        kept_bytes=rates.kept_byte,
    )
