"""The model as a row of items that a pipeline can be cut between: blocks, and what lies between.

An item is a block, or a part of the root: the calls outside blocks that run after one block and
before the next. Root calls that follow from inputs, buffers and constants alone, and that have no
gradient (positions, rotary tables, masks, the shift of labels), are *shared*: they belong to no
item, since every stage can run them for itself from the step's inputs.

Items are in the order of execution, so a stage is a range of them, and what crosses a cut is all
that was made before it and is read after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from autoplan.trace.graph import OpGraph, OpNode, Ref


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """A block, or a part of the root.

    Attributes:
        name: the path of the block, or the first call of the part.
        kind: of the block; empty for a part of the root.
        calls: names of its call nodes, in order.
    """

    name: str
    kind: str
    calls: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A graph cut into items.

    Attributes:
        shared: root calls that every stage runs for itself, in order.
        items: in the order of execution.
    """

    graph: OpGraph
    shared: tuple[str, ...]
    items: tuple[Item, ...]

    @cached_property
    def position(self) -> Mapping[str, int]:
        """For every call of an item, the item's number."""
        return {name: number for number, item in enumerate(self.items) for name in item.calls}

    @cached_property
    def crossings(self) -> tuple[tuple[Ref, ...], ...]:
        """For each cut, number i being behind item i, the tensors that cross it.

        A tensor that is read several stages further on crosses every cut on its way. Values that
        alias others cross as they are.
        """
        found: list[list[Ref]] = [[] for _ in self.items[1:]]
        for ref, readers in self.graph.readers.items():
            made = self.position.get(ref.node)
            if made is None:
                continue
            read = (self.position[name] for name in readers if name in self.position)
            last = max(read, default=made)
            for cut in range(made, last):
                found[cut].append(ref)
        return tuple(map(tuple, found))

    @cached_property
    def parameters(self) -> tuple[tuple[str, ...], ...]:
        """For each item, the parameter nodes that it reads; one may be read by several.

        What nothing reads is counted with the first part of the root.
        """
        kinds = {node.name: node.kind for node in self.graph.nodes}
        found = [
            dict.fromkeys(
                ref.node
                for name in item.calls
                for ref in self.graph.by_name[name].operands
                if kinds[ref.node] == "parameter"
            )
            for item in self.items
        ]
        for item, names in zip(self.items, found, strict=True):
            if not item.kind:
                names.update(dict.fromkeys(self._unread))
                break
        return tuple(map(tuple, found))

    @property
    def _unread(self) -> tuple[str, ...]:
        nodes = self.graph.of_kind("parameter")
        return tuple(node.name for node in nodes if not self.graph.readers.get(Ref(node.name)))


def stack_of(graph: OpGraph) -> Stack:
    """The items of a graph."""
    shared = _shared(graph)
    items: list[Item] = []
    part: list[str] = []

    def end_part() -> None:
        if part:
            items.append(Item(name=part[0], kind="", calls=tuple(part)))
            part.clear()

    started: set[str] = set()
    for node in graph.of_kind("call"):
        block = graph.block_of.get(node.name)
        if block is None:
            if node.name not in shared:
                part.append(node.name)
        elif block.path not in started:
            started.add(block.path)
            end_part()
            items.append(Item(name=block.path, kind=block.kind, calls=block.nodes))
    end_part()
    return Stack(graph=graph, shared=tuple(shared), items=tuple(items))


def _shared(graph: OpGraph) -> dict[str, None]:
    given = {node.name for node in graph.nodes if node.kind not in ("call", "parameter")}
    found: dict[str, None] = {}
    for node in graph.of_kind("call"):
        if node.name not in graph.block_of and _is_shared(node, given | found.keys()):
            found[node.name] = None
    return found


def _is_shared(node: OpNode, known: Iterable[str]) -> bool:
    learns = any(meta.requires_grad for meta in node.outputs)
    return not learns and all(ref.node in known for ref in node.operands)
