"""Where the model is cut into pipeline stages, and what crosses each cut.

A stage is a range of the items of ``trace.stack``. A tensor that is read behind a cut crosses it,
and every further cut up to its last reader, since stages talk to their neighbours alone. It crosses
as local shards, in the placement in which the next block that reads it lets it in; where only calls
outside blocks read it, as it was made, but never as terms of a sum. Calls that the stack shares
cross nothing: each stage that reads them runs them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.codegen.choices import Choices
from autoplan.codegen.needs import needed
from autoplan.sharding.placement import Partial, Placement, Replicate, grad_of
from autoplan.sharding.redistribute import is_possible
from autoplan.sharding.stages import stage_starts
from autoplan.sharding.strategies import Port
from autoplan.trace.graph import Ref
from autoplan.trace.stack import Stack, stack_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Crossing:
    """A tensor that crosses a cut, and its placement on ``tp`` there."""

    ref: Ref
    placement: Placement

    @property
    def port(self) -> Port:
        """How the sending stage reads it."""
        return Port(self.placement, grad_of(self.placement))


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """One stage: the paths of its blocks, and what enters and leaves."""

    blocks: tuple[str, ...]
    receives: tuple[Crossing, ...]
    sends: tuple[Crossing, ...]


def cut_stages(choices: Choices) -> tuple[Cut, ...]:
    """The stages of a program; one of everything where the plan names none.

    Raises:
        PlanError: when the plan's stages are no ranges of the model.
    """
    stack = stack_of(choices.graph)
    starts = choices.starts or stage_starts(stack, choices.stages)
    crossings = _crossings(choices, stack, starts)
    ends = [*starts[1:], len(stack.items)]
    return tuple(
        Cut(
            blocks=tuple(item.name for item in stack.items[start:end] if item.kind),
            receives=before,
            sends=behind,
        )
        for start, end, before, behind in zip(
            starts, ends, [(), *crossings], [*crossings, ()], strict=True
        )
    )


def _crossings(choices: Choices, stack: Stack, starts: Sequence[int]) -> list[tuple[Crossing, ...]]:
    """What crosses between each stage and the next; the last stage reads the results."""
    graph = choices.graph
    live = needed(graph, graph.results, frozenset(choices.hoisted))
    found: list[list[Crossing]] = [[] for _ in starts[1:]]
    for node in graph.of_kind("call"):
        if node.name not in live or node.name not in stack.position:
            continue
        made = _stage(starts, stack.position[node.name])
        for index in range(len(node.outputs)):
            ref = Ref(node.name, index)
            readers = [name for name in graph.readers.get(ref, ()) if name in live]
            stages = [_stage(starts, stack.position[name]) for name in readers]
            if ref in graph.results:
                stages.append(len(starts) - 1)
            placement = choices.assignment.strategies[node.name].outputs[index]
            for cut in range(made, max(stages, default=0)):
                placement = _placement(choices, stack, (ref, placement), starts[cut + 1], readers)
                found[cut].append(Crossing(ref=ref, placement=placement))
    return [tuple(crossings) for crossings in found]


def _stage(starts: Sequence[int], item: int) -> int:
    return bisect_right(starts, item) - 1


def _placement(
    choices: Choices,
    stack: Stack,
    arriving: tuple[Ref, Placement],
    behind: int,
    readers: Sequence[str],
) -> Placement:
    """In which placement a tensor crosses the cut before item ``behind``."""
    ref, source = arriving
    doors = [
        choices.assignment.entry(block, ref)
        for name in readers
        if stack.position[name] >= behind and (block := choices.graph.block_of.get(name))
    ]
    for door in doors[:1]:
        if is_possible(source, Port(door, grad_of(door))):
            return door
    return Replicate() if source == Partial() else source
