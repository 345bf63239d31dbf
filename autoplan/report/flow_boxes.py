"""The operators of a block as boxes to draw: those of one module together, messages between them.

Operators that follow one another in a module, with the same placement and fate in the backward and
no message between, are one box, unless a way leads from one to the other around it; what has flops
stands alone. A message is a box of its own between the tensor and all that want it in that
placement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Literal

from autoplan.plan_details import BlockFlow, FlowOperator, TensorRead
from autoplan.report import units

_NAMES_TOLD = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """What is drawn as one.

    Attributes:
        name, told: two lines of text.
        placement: on ``tp``; empty for messages.
        recomputed: runs again in the backward.
    """

    kind: Literal["operators", "message", "edge"]
    name: str
    told: str
    placement: str = ""
    recomputed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """Boxes, each behind what it reads, and pairs of a box and one that reads it."""

    boxes: tuple[Box, ...]
    edges: tuple[tuple[int, int], ...]


def drawing_of(flow: BlockFlow, inputs: Sequence[str]) -> Drawing:
    """The drawing of a flow.

    Args:
        inputs: placements in which activations enter the block.
    """
    return _Drawer(flow, inputs).drawing()


def sent_text(read: TensorRead, count: int = 1) -> str:
    """``all_gather, back reduce_scatter``; how many where there are several."""
    kinds = [read.forward] if read.forward else []
    kinds += [f"back {read.backward}"] if read.backward else []
    text = ", ".join(kinds)
    return text if count == 1 else f"{count} x {text}"


class _Drawer:
    def __init__(self, flow: BlockFlow, inputs: Sequence[str]) -> None:
        self._flow = flow
        self._inputs = inputs
        self._boxes: list[Box] = []
        self._edges: list[tuple[int, int]] = []
        self._sent: dict[tuple[int, str, str, int], int] = {}
        self._counts = _counts(flow)

    def drawing(self) -> Drawing:
        entered = {
            read.source
            for reads in self._all_reads()
            for read in reads
            if read.source is not None and read.source < 0
        }
        at = {source: self._enters(source) for source in sorted(entered, reverse=True)}
        for group in _groups(self._flow.operators):
            reads = [read for number in group for read in self._flow.operators[number].reads]
            outside = [read for read in reads if read.source not in group]
            before = self._before(outside, at)
            number = self._add(_box([self._flow.operators[number] for number in group]), before)
            at.update(dict.fromkeys(group, number))
        if self._flow.outputs:
            before = self._before(self._flow.outputs, at)
            self._add(Box(kind="edge", name="leaves the block", told=""), before)
        return Drawing(boxes=tuple(self._boxes), edges=tuple(dict.fromkeys(self._edges)))

    def _all_reads(self) -> Iterable[tuple[TensorRead, ...]]:
        yield from (operator.reads for operator in self._flow.operators)
        yield self._flow.outputs

    def _add(self, box: Box, before: Iterable[int]) -> int:
        number = len(self._boxes)
        self._boxes.append(box)
        self._edges += [(other, number) for other in before]
        return number

    def _enters(self, source: int) -> int:
        index = -1 - source
        placement = self._inputs[index] if index < len(self._inputs) else ""
        name = "enters the block" if index == 0 else f"enters, input {index + 1}"
        return self._add(Box(kind="edge", name=name, told=placement, placement=placement), ())

    def _before(self, reads: Sequence[TensorRead], at: dict[int, int]) -> list[int]:
        """The boxes that something reads: makers, or the messages that come from them."""
        found, weights = [], Counter[tuple[str, str]]()
        for read in reads:
            sent = read.forward or read.backward
            if read.source is not None:
                source = at[read.source]
                found.append(self._message(read, source) if sent else source)
            elif sent:
                weights[read.forward, read.backward] += read.nbytes
        for (forward, backward), nbytes in weights.items():
            sent = TensorRead(source=None, forward=forward, backward=backward, nbytes=nbytes)
            told = f"weights, {units.nbytes(nbytes)}"
            found.append(self._add(Box(kind="message", name=sent_text(sent), told=told), ()))
        return found

    def _message(self, read: TensorRead, source: int) -> int:
        key = (read.source or 0, read.forward, read.backward, read.nbytes)
        if key not in self._sent:
            name = sent_text(read, self._counts[read])
            box = Box(kind="message", name=name, told=units.nbytes(read.nbytes))
            self._sent[key] = self._add(box, (source,))
        return self._sent[key]


def _counts(flow: BlockFlow) -> Counter[TensorRead]:
    """How many tensors a message stands for: as many as one operator reads."""
    found = Counter[TensorRead]()
    for operator in flow.operators:
        found |= Counter(operator.reads)
    return found | Counter(flow.outputs)


def _box(members: Sequence[FlowOperator]) -> Box:
    module = members[0].name.rpartition("/")[0]
    operators = [*dict.fromkeys(_operator(each) for each in members)]
    several = f"{len(members)} operators"
    told = several if len(operators) > _NAMES_TOLD else ", ".join(operators)
    return Box(
        kind="operators",
        name=module or "the block",
        told=told,
        placement=members[-1].placement,
        recomputed=members[0].recomputed,
    )


def _operator(operator: FlowOperator) -> str:
    return operator.name.rpartition("/")[2].partition("#")[0]


def _groups(operators: Sequence[FlowOperator]) -> list[tuple[int, ...]]:
    """Numbers of the operators of each box, every box behind what it reads."""
    group = [*range(len(operators))]
    for number, operator in enumerate(operators):
        for read in operator.reads:
            source = read.source
            if source is None or source < 0 or read.forward or read.backward:
                continue
            if _alike(operators[source], operator) and group[source] != group[number]:
                merged = [group[source] if each == group[number] else each for each in group]
                if _in_order(operators, merged) is not None:
                    group = merged
    order = _in_order(operators, group) or []
    return [tuple(n for n, each in enumerate(group) if each == one) for one in order]


def _alike(one: FlowOperator, other: FlowOperator) -> bool:
    modules = [each.name.rpartition("/")[0] for each in (one, other)]
    same = one.placement == other.placement and one.recomputed == other.recomputed
    same = same and not (one.flops or other.flops)
    return bool(modules[0]) and modules[0] == modules[1] and same


def _in_order(operators: Sequence[FlowOperator], group: Sequence[int]) -> list[int] | None:
    """The groups, each behind those that it reads.

    None where they wait for one another, or for a message between members of one.
    """
    waits: dict[int, set[int]] = {each: set() for each in group}
    for number, operator in enumerate(operators):
        for read in operator.reads:
            if read.source is not None and read.source >= 0:
                if (read.forward or read.backward) and group[read.source] == group[number]:
                    return None
                waits[group[number]].add(group[read.source])
    sorter = TopologicalSorter({each: before - {each} for each, before in waits.items()})
    try:
        return [*sorter.static_order()]
    except CycleError:
        return None
