"""About how long a step of a configuration takes, in a millisecond: is it worth a search?

What is returned is neither a plan's value nor a bound. Every region has a few columns, from the
fastest to the leanest (``ladder_of``); a rank takes two neighbours of them, mixed so that its
memory is full. That is done for a few ranks of an even cut, and the schedule's paths
(``objectives``) add it up; messages that hold up the schedule beyond these are not seen.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.family import ALL_SECONDS, Family
from autoplan.search.pipeline.loads import Load, Placed, load_of
from autoplan.search.pipeline.objectives import RankObjective, Weights, dealt
from autoplan.search.pipeline.whole import WholeCosts
from autoplan.search.regions.column import Column

Floats = npt.NDArray[np.float64]
Ladder = tuple[Mapping[str, Column], ...]
"""A column for each region, from the fastest ways to the leanest."""

# Seconds that a byte kept is worth, as parts of what a block's step takes for a byte that it keeps.
_STEPS = (0.003, 0.03, 0.1, 0.3, 1.0)
_ELEMENT_BYTES = 8
_PRICED_RANKS = 4


def ladder_of(family: Family) -> Ladder:
    """The columns of a family's regions at rising prices of memory, the same for all of them."""
    columns = {key: menu.least(ALL_SECONDS) for key, menu in family.free.items()}
    second_per_byte = max(
        least.value / least.column.kept_bytes if least.column.kept_bytes else 0.0
        for least in columns.values()
    )
    found: list[Mapping[str, Column]] = []
    for step in _STEPS if family.recompute == "free" else _STEPS[:: len(_STEPS) - 1]:
        byte_s = step * second_per_byte
        prices = replace(ALL_SECONDS, kept_bytes=byte_s, trained_elements=_ELEMENT_BYTES * byte_s)
        rung = {key: menu.least(prices).column for key, menu in family.free.items()}
        if rung not in found:
            found.append(rung)
    return tuple(found)


def sketched_s(
    costs: WholeCosts,
    keys: Sequence[str],
    counted: Sequence[RankObjective],
    ladder: Ladder,
) -> float:
    """Seconds of a step, roughly; inf where it does not seem to fit.

    Args:
        costs: of the configuration.
        keys: the region of each item.
        counted: the objectives of its schedule.
        ladder: columns of the regions.
    """
    ranks = len(counted)
    cuts = _cuts(costs, [sum(_seconds(ladder[0][key])) for key in keys])
    anchors = sorted({0, min(1, ranks - 1), ranks // 2, max(0, ranks - 2), ranks - 1})
    found = []
    for rank in anchors:
        held = sum(counted[rank].held) / len(counted[rank].held)
        seconds = _filled(costs, keys[cuts[rank] : cuts[rank + 1]], cuts[rank], held, ladder)
        if seconds is None:
            return math.inf
        found.append(seconds)
    every = range(ranks)
    table = np.array([np.interp(every, anchors, amounts) for amounts in zip(*found, strict=True)])
    share, extra = (
        _weighted(costs, [getattr(each, name) for each in counted], table[:3].T)
        for name in ("share", "extra")
    )
    head, tail, optimizer = table[3:]
    return float(head.max() + share.sum() + extra.max() + tail[0] + optimizer[0])


def first_prices(
    costs: WholeCosts, keys: Sequence[str], counted: Sequence[RankObjective], ladder: Ladder
) -> list[float]:
    """What a byte of memory is worth, roughly: seconds of the step at a few ranks, the most first;
    none where it is not short.

    That is what the last rung that does not fit would save beside the next. Arguments are those of
    ``sketched_s``.
    """
    cuts = _cuts(costs, [sum(_seconds(ladder[0][key])) for key in keys])
    found = set()
    for rank in {part * len(counted) // _PRICED_RANKS for part in range(_PRICED_RANKS)}:
        objective, items = counted[rank], slice(cuts[rank], cuts[rank + 1])
        weights = (
            np.array([objective.share.stages, objective.extra.stages]).mean(axis=1).sum(axis=0)
        )
        held = sum(objective.held) / len(objective.held)
        price_s, above_bytes, above_s = 0.0, math.inf, 0.0
        for nbytes, seconds in _rungs(costs, keys[items], cuts[rank], held, ladder):
            rung_s = float(weights @ seconds[:3])
            if above_bytes < math.inf and nbytes < above_bytes:
                price_s = max(0.0, rung_s - above_s) / (above_bytes - nbytes)
            if nbytes <= costs.memory.limit_bytes:
                break
            above_bytes, above_s = nbytes, rung_s
        found.add(price_s)
    return sorted(found - {0.0}, reverse=True)


def _seconds(column: Column) -> tuple[float, float, float]:
    return column.forward_s, column.backward_input_s, column.backward_weight_s


def _cuts(costs: WholeCosts, item_s: Sequence[float]) -> list[int]:
    """Where the items of each rank begin, for ranks that are busy for about as long."""
    ranks, count, each = costs.config.pp, len(item_s), costs.config.stages_per_rank
    sizes = dealt(costs.is_block, ranks * each) if each > 1 else None
    if sizes is not None:
        of_rank = [sum(sizes[rank::ranks]) for rank in range(ranks)]
        return np.cumsum([0, *of_rank]).tolist()
    ends = np.cumsum(item_s) - np.array(item_s) / 2
    wanted = np.searchsorted(ends, np.arange(ranks + 1) * ends[-1] / ranks)
    wanted[0], wanted[-1] = 0, count
    at_least = np.maximum.accumulate(wanted - np.arange(ranks + 1)) + np.arange(ranks + 1)
    return np.minimum(at_least, count - ranks + np.arange(ranks + 1)).tolist()


def _filled(
    costs: WholeCosts, keys: Sequence[str], first: int, held: float, ladder: Ladder
) -> Floats | None:
    """Seconds of one rank: those of a microbatch, and of its head, its tail and the optimizer."""
    above: tuple[float, Floats] | None = None
    limit_bytes = costs.memory.limit_bytes
    for nbytes, seconds in _rungs(costs, keys, first, held, ladder):
        if nbytes <= limit_bytes:
            if above is None:
                return seconds
            share = (limit_bytes - nbytes) / (above[0] - nbytes)
            return share * above[1] + (1 - share) * seconds
        above = nbytes, seconds
    return None


def _rungs(
    costs: WholeCosts, keys: Sequence[str], first: int, held: float, ladder: Ladder
) -> Iterator[tuple[float, Floats]]:
    """Bytes of one rank and its seconds, as of ``_filled``, on each rung."""
    counts = Counter(zip(keys, costs.is_block[first : first + len(keys)], strict=True))
    for rung in ladder:
        load = _load(costs, counts, rung)
        each = costs.clock.seconds(load)
        seconds = np.array(
            (each.forward_s, each.backward_input_s, each.backward_weight_s, each.head_s,
             each.tail_s, each.optimizer_s)
        )  # fmt: skip
        yield costs.memory.breakdown([load], held * load.kept_bytes).total, seconds


def _load(
    costs: WholeCosts, counts: Mapping[tuple[str, bool], int], rung: Mapping[str, Column]
) -> Load:
    leaving = costs.cuts[len(costs.cuts) // 2].forward_bytes if costs.config.pp > 1 else 0.0
    return load_of(
        (
            Placed(column=rung[key], count=count, is_block=is_block)
            for (key, is_block), count in counts.items()
        ),
        forward_s=costs.shared_s,
        kept_bytes=leaving * costs.config.stages_per_rank,
        split_element_s=costs.split_element_s,
    )


def _weighted(costs: WholeCosts, weights: Sequence[Weights], seconds: Floats) -> Floats:
    """What each rank counts in an objective, its messages to the next rank and back included."""
    means = np.array([each.stages for each in weights]).mean(axis=1)
    values = (means * seconds).sum(axis=1)
    if costs.config.pp > 1:
        middle, hops = costs.cuts[len(costs.cuts) // 2], costs.hops
        values += [
            each.forward_sends * hops[rank].seconds(middle.forward_bytes)
            + each.backward_sends * hops[rank - 1].seconds(middle.backward_bytes)
            for rank, each in enumerate(weights)
        ]
    return values
