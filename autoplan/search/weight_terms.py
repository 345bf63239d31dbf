"""What the parameters add to a candidate's problem: their choices, messages and peaks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from autoplan.search.candidate_costs import CandidateCosts, Recomputed
from autoplan.search.folded_graph import ROOT
from autoplan.search.problem import Choice, Overlap, Peak, pages
from autoplan.search.weight_costs import UnitMessages, WeightCosts
from cost_models.memory import STORED_BYTES, WeightBytes

IN_FLIGHT_UNITS = 2

_PagesByChoice = tuple[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class WeightTerms:
    """Terms of one candidate when so many blocks of each kind are recomputed."""

    costs: CandidateCosts
    recomputed: Recomputed

    @property
    def weights(self) -> WeightCosts:
        return self.costs.weights

    def choices(self, number: int, labels: Iterable[str]) -> tuple[Choice, ...]:
        """The storage placements of one parameter."""
        region = self.costs.region(number)
        copies = self.costs.folded.copies(region)
        each = self._each(number)
        found = []
        for choice, label in enumerate(labels):
            elements = self.weights.elements[number][choice]
            found.append(
                Choice(
                    label=label,
                    time_s=self._exposed_s(number, choice, region, copies),
                    memory_pages=pages(copies * elements * held_bytes(each)),
                    step_pages=pages(copies * elements * each.optimizer_step),
                )
            )
        return tuple(found)

    def root_latency_s(self) -> float:
        """Seconds of the root's messages that do not depend on choices."""
        return sum(times * sent.fixed_s for sent, times in unit_messages(self.costs, ROOT))

    def peaks(self) -> tuple[Peak, ...]:
        """Weights gathered for the root and the blocks in use, and the largest gradient sent."""
        units: dict[str, list[int]] = {}
        for number in self.weights.elements:
            units.setdefault(self.costs.region(number), []).append(number)
        gathered = {
            region: tuple(self._in_flight(number, region) for number in members)
            for region, members in units.items()
        }
        root = gathered.pop(ROOT, ())
        sent = units.values() if self.weights.stage.shards_states else ([n] for n in self._learning)
        reduced = (
            tuple(self._gradient(number) for number in members if self.weights.trainable[number])
            for members in sent
        )
        one_rank = self.costs.candidate.dp == 1
        return (
            Peak(name="gathered root", groups=(root,)),
            Peak(name="gathered blocks", groups=tuple(gathered.values())),
            Peak(name="reduced", groups=() if one_rank else tuple(reduced)),
        )

    def overlaps(self) -> tuple[Overlap, ...]:
        """Messages of blocks: weights under the forward, weights and gradients under the backward.

        A message sent once a step has the window of one microbatch.
        """
        weights, stage = self.weights, self.weights.stage
        count = self.costs.candidate.num_microbatches
        again = stage.gathers_per_microbatch // 2 * count
        reductions = stage.reductions_per_step + count * stage.reductions_per_microbatch
        forward = [(weights.gathers, stage.gathers_per_step + again)]
        backward = [(weights.gathers, again), (weights.reductions, reductions)]
        found = (
            self._overlap("forward", forward, 1 if stage.gathers_per_step else count),
            self._overlap("backward", backward, 1 if stage.reductions_per_step else count),
        )
        return tuple(overlap for overlap in found if overlap.messages_s)

    @property
    def _learning(self) -> Iterator[int]:
        return (number for number, learns in self.weights.trainable.items() if learns)

    def _each(self, number: int) -> WeightBytes:
        return self.weights.per_element[self.weights.trainable[number]]

    def _exposed_s(self, number: int, choice: int, region: str, copies: int) -> float:
        """Seconds beside no compute: the optimizer, stage 0's sums and the root's messages."""
        seconds = 0.0
        if self.weights.trainable[number]:
            seconds += copies * self.weights.optimizer_s[number][choice]
        if number in self.weights.all_reduce_s:
            seconds += self.weights.all_reduce_s[number][choice]
        for sent, times in unit_messages(self.costs, region) if region == ROOT else ():
            if number in sent.by_parameter_s:
                seconds += times * sent.by_parameter_s[number][choice]
        return seconds

    def _in_flight(self, number: int, region: str) -> _PagesByChoice:
        units = min(IN_FLIGHT_UNITS, self.costs.folded.copies(region))
        nbytes = units * self._each(number).gathered_in_flight
        return number, tuple(pages(n * nbytes) for n in self.weights.elements[number])

    def _gradient(self, number: int) -> _PagesByChoice:
        return number, tuple(pages(n * STORED_BYTES) for n in self.weights.elements[number])

    def _overlap(
        self, name: str, sent: Iterable[tuple[dict[str, UnitMessages], int]], runs: int
    ) -> Overlap:
        fixed_s = 0.0
        by_parameter: dict[int, list[float]] = {}
        for by_region, times in sent:
            for region, messages in by_region.items() if times else ():
                if region == ROOT:
                    continue
                units = times * self.costs.folded.copies(region)
                fixed_s += units * messages.fixed_s
                for number, row in messages.by_parameter_s.items():
                    total = by_parameter.setdefault(number, [0.0] * len(row))
                    by_parameter[number] = [t + units * s for t, s in zip(total, row, strict=True)]
        return Overlap(
            name=name,
            messages_s=tuple((number, tuple(row)) for number, row in by_parameter.items()),
            window_s=tuple(self._window(name, runs)) if by_parameter else (),
            floor=1 - self.costs.overlap_efficiency,
            fixed_messages_s=fixed_s,
        )

    def _window(self, name: str, runs: int) -> Iterator[tuple[int, tuple[float, ...]]]:
        """Compute of ``runs`` microbatches that can hide messages, all regions together."""
        for number, priced in enumerate(self.costs.microbatch.operators):
            region = self.costs.region(number)
            copies, again = self.costs.folded.copies(region), self.recomputed.get(region, 0)
            if name == "forward":
                row = [copies * cost.forward_s for cost in priced]
            else:
                row = [copies * cost.backward_s + again * cost.forward_s for cost in priced]
            if any(row):
                yield number, tuple(self.costs.overlap_efficiency * runs * s for s in row)


def held_bytes(each: WeightBytes) -> float:
    """Bytes that an element takes during the whole step."""
    return each.parameters + each.gradients + each.optimizer_state + each.gathered_parameters


def unit_messages(costs: CandidateCosts, region: str) -> tuple[tuple[UnitMessages, int], ...]:
    """Messages of one unit of a region, with how often a step sends them."""
    weights, count = costs.weights, costs.candidate.num_microbatches
    stage = weights.stage
    gathers = stage.gathers_per_step + count * stage.gathers_per_microbatch
    reductions = stage.reductions_per_step + count * stage.reductions_per_microbatch
    return tuple(
        (by_region[region], times)
        for by_region, times in ((weights.gathers, gathers), (weights.reductions, reductions))
        if region in by_region
    )
