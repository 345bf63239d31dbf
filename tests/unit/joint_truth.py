"""The best of all plans of a small problem, by trying every cut and every column.

Steps are timed here from the actions of the schedule, one after the other, and not by the code
under test. Two plans of a stage are compared before whole plans are: a step never gets shorter
where a stage's seconds get longer, so of the contents of a stage that fit only those count of which
no other is faster in everything. Ranks with several stages are tried without that, by
``value_of_whole``.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autoplan.search.pipeline.dealing import stages_of
from autoplan.search.pipeline.loads import Placed, load_of
from autoplan.search.pipeline.whole import StageContent, WholeCosts, WholeValue, value_of_whole
from autoplan.search.regions.column import Column
from cost_models.schedules import PipelineShape, rank_actions
from tests.unit.joint_problems import JointProblem, all_cuts


@dataclass(frozen=True, slots=True)
class Truth:
    """The best plan, if any fits."""

    step_s: float
    value: WholeValue | None


@dataclass(frozen=True, slots=True)
class _Content:
    """What one stage may be: seconds of a microbatch, then those once a step."""

    columns: tuple[Column, ...]
    forward_s: float
    backward_input_s: float
    backward_weight_s: float
    head_s: float
    after_s: float

    @property
    def seconds(self) -> tuple[float, ...]:
        return (
            self.forward_s, self.backward_input_s, self.backward_weight_s, self.head_s,
            self.after_s,
        )  # fmt: skip


def best_of_all(problem: JointProblem) -> Truth:
    """The fastest plan that fits."""
    best = Truth(math.inf, None)
    for way in range(len(problem.family.ways)):
        one_by_one = _dealt_plans if problem.config.stages_per_rank > 1 else _staged_plans
        found = one_by_one(problem, way, best.step_s)
        if found.step_s < best.step_s:
            best = found
    return best


def _dealt_plans(problem: JointProblem, way: int, below_s: float) -> Truth:
    """Ranks with several stages, whose blocks run alike at one place of them all."""
    family, costs, row = problem.family, problem.costs(way), problem.row
    best = Truth(below_s, None)
    for cuts in all_cuts(row):
        ways = []
        for rank, (first, stop) in enumerate(itertools.pairwise(cuts)):
            keys = family.keys[first:stop]
            places = [place for _, place in row.places(rank)]
            slots = list(zip(keys, places, strict=True))
            menus = {slot: family.ways[way].columns[slot[0]] for slot in slots}
            ways.append(
                [
                    tuple(dict(zip(menus, chosen, strict=True))[slot] for slot in slots)
                    for chosen in itertools.product(*menus.values())
                ]
            )
        for columns in itertools.product(*ways):
            value = value_of_whole(costs, stages_of(row, cuts, columns))
            if value.step_s < best.step_s and value.fits(problem.limit_bytes):
                best = Truth(value.step_s, value)
    return best


def _staged_plans(problem: JointProblem, way: int, below_s: float) -> Truth:
    costs = problem.costs(way)
    known: dict[tuple[int, int, int], list[_Content]] = {}
    best = Truth(below_s, None)
    for cuts in all_cuts(problem.row):
        rows = []
        for rank, (first, stop) in enumerate(itertools.pairwise(cuts)):
            if (rank, first, stop) not in known:
                known[rank, first, stop] = list(_contents(problem, way, costs, rank, first, stop))
            rows.append(known[rank, first, stop])
        if not all(rows):
            continue
        step_s, chosen = _fastest(costs, cuts, rows, best.step_s)
        if step_s < best.step_s:
            stages = [
                StageContent(first=first, columns=content.columns)
                for first, content in zip(cuts, chosen, strict=False)
            ]
            value = value_of_whole(costs, stages)
            assert value.fits(problem.limit_bytes)
            assert math.isclose(value.step_s, step_s, rel_tol=1e-9)
            best = Truth(value.step_s, value)
    return best


def _contents(
    problem: JointProblem, way: int, costs: WholeCosts, rank: int, first: int, stop: int
) -> Iterator[_Content]:
    """What the stage may be, without what fits not or is slower in everything."""
    kept: list[_Content] = []
    for columns in _choices(problem, way, first, stop):
        content = _content(problem, costs, rank, first, columns)
        if content is None:
            continue
        if any(_is_no_slower(other, content) for other in kept):
            continue
        kept = [other for other in kept if not _is_no_slower(content, other)]
        kept.append(content)
    yield from kept


def _choices(
    problem: JointProblem, way: int, first: int, stop: int
) -> Iterator[tuple[Column, ...]]:
    """Columns of the items; the order among items of one region makes no difference."""
    keys = problem.family.keys[first:stop]
    counts = Counter(keys)
    menus = problem.family.ways[way].columns
    sets = [
        list(itertools.combinations_with_replacement(menus[key], count))
        for key, count in counts.items()
    ]
    for chosen in itertools.product(*sets):
        left = {key: list(columns) for key, columns in zip(counts, chosen, strict=True)}
        yield tuple(left[key].pop() for key in keys)


def _content(
    problem: JointProblem, costs: WholeCosts, rank: int, first: int, columns: tuple[Column, ...]
) -> _Content | None:
    """The stage with some columns; None if it does not fit."""
    stop, shape = first + len(columns), problem.config.shape
    twice = sum(
        elements * max(0, sum(first <= item < stop for item in items) - 1)
        for items, elements in costs.tied
    )
    leaving = costs.cuts[stop - 1].forward_bytes if stop <= len(costs.cuts) else 0.0
    at = {column: first + number for number, column in enumerate(columns)}
    load = load_of(
        (
            Placed(
                column=column,
                count=count,
                is_block=costs.is_block[at[column]],
                is_tail=not any(costs.is_block[at[column] : stop]),
            )
            for column, count in Counter(columns).items()
        ),
        forward_s=costs.shared_s,
        kept_bytes=leaving,
        twice_elements=twice,
        apart=[one.unit for one in costs.apart if any(first <= item < stop for item in one.items)],
        split_element_s=costs.split_element_s,
    )
    held = most_held(shape, rank)
    memory = costs.memory.breakdown([load], math.ceil(held * load.kept_bytes))
    if memory.total > problem.limit_bytes:
        return None
    seconds = costs.clock.seconds(load)
    return _Content(
        columns,
        seconds.forward_s,
        seconds.backward_input_s,
        seconds.backward_weight_s,
        seconds.head_s,
        seconds.tail_s + seconds.optimizer_s,
    )


def most_held(shape: PipelineShape, stage: int) -> int:
    """Microbatches that a stage holds at once, by running through the actions of its rank."""
    now = most = 0
    for action in rank_actions(shape, stage):
        now += action.kind == "F"
        most = max(most, now)
        now -= action.kind in ("B", "W")
    return most


def _is_no_slower(one: _Content, other: _Content) -> bool:
    return all(a <= b for a, b in zip(one.seconds, other.seconds, strict=True))


def _fastest(
    costs: WholeCosts, cuts: Sequence[int], rows: list[list[_Content]], below_s: float
) -> tuple[float, tuple[_Content, ...]]:
    """The fastest combination of contents; those that cannot be are not timed."""
    shape, sends = costs.config.shape, _sends(costs, cuts)
    combinations = list(itertools.product(*rows))
    seconds = np.array([[one.seconds for one in each] for each in combinations])
    order = np.argsort(bounds := _bounds(seconds, shape))
    best, chosen = below_s, ()
    for number in order:
        if bounds[number] >= best:
            break
        each = combinations[number]
        ends = ends_of(shape, seconds[number, :, :3], sends)
        step_s = max(one.head_s for one in each)
        step_s += max(end + one.after_s for end, one in zip(ends, each, strict=True))
        if step_s < best:
            best, chosen = step_s, each
    return best, chosen


def _bounds(seconds: np.ndarray, shape: PipelineShape) -> np.ndarray:
    """What a rank runs, after its first microbatch has come through those before it."""
    busy = shape.microbatches * seconds[:, :, :2].sum(axis=2)
    busy += (shape.microbatches - shape.splits_backward * shape.ranks) * seconds[:, :, 2]
    before = np.cumsum(seconds[:, :, 0], axis=1) - seconds[:, :, 0]
    ends = busy + before + seconds[:, :, 4]
    return (1 - 1e-9) * (seconds[:, :, 3].max(axis=1) + ends.max(axis=1))


def _sends(costs: WholeCosts, cuts: Sequence[int]) -> list[tuple[float, float]]:
    """Seconds of messages over each cut, there and back."""
    return [
        (
            costs.hops[rank].seconds(costs.cuts[cut - 1].forward_bytes),
            costs.hops[rank].seconds(costs.cuts[cut - 1].backward_bytes),
        )
        for rank, cut in enumerate(cuts[1:-1])
    ]


def ends_of(
    shape: PipelineShape, seconds: np.ndarray, sends: Sequence[tuple[float, float]]
) -> list[float]:
    """When each stage's last backward ends; one stage a rank, messages beside compute.

    Args:
        seconds: of shape (stages, 3): forward, backward of inputs, backward of weights.
        sends: over each cut, there and back.
    """
    left = [list(reversed(rank_actions(shape, rank))) for rank in range(shape.ranks)]
    ended: dict[tuple[str, int, int], float] = {}
    arrived: dict[tuple[str, int, int], float] = {}
    free = {(kind, rank): 0.0 for kind in "FBI" for rank in range(shape.ranks)}
    clocks = [0.0] * shape.ranks
    took = [{"F": f, "I": i, "W": w, "B": i + w} for f, i, w in seconds.tolist()]
    while any(left):
        for rank, actions in enumerate(left):
            while actions:
                kind, _, microbatch = actions[-1]
                begin, is_forward = clocks[rank], kind == "F"
                is_sent_here = rank > 0 if is_forward else kind != "W" and rank < shape.ranks - 1
                if is_sent_here:
                    if (kind, rank, microbatch) not in arrived:
                        break
                    begin = max(begin, arrived[kind, rank, microbatch])
                clocks[rank] = ended[kind, rank, microbatch] = begin + took[rank][kind]
                there = rank + 1 if is_forward else rank - 1
                if kind != "W" and 0 <= there < shape.ranks:
                    sent_s = sends[rank][0] if is_forward else sends[there][1]
                    free[kind, rank] = max(clocks[rank], free[kind, rank]) + sent_s
                    arrived[kind, there, microbatch] = free[kind, rank]
                actions.pop()
    last = "W" if shape.splits_backward else "B"
    return [
        max(ended[last, rank, microbatch] for microbatch in range(shape.microbatches))
        for rank in range(shape.ranks)
    ]
