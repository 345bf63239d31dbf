"""What a region is made of: calls, what enters and leaves, parameters, and what can be recomputed.

Tensors are named as the folded graph names them: what enters a block by its door. Inputs, buffers
and values that every stage makes for itself enter whole on every rank; as they never learn, no
conversion of them costs anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from autoplan.search.folded_graph import FoldedGraph
from autoplan.search.regions.boundaries import Boundary, boundary_of, folded_ref
from autoplan.trace.graph import OpNode, Ref
from autoplan.trace.needed import is_view, needed_calls
from autoplan.trace.stack import Item, Stack


@dataclass(frozen=True, kw_only=True)
class Region:
    """One block of a kind, or a part of the root.

    Attributes:
        key: the kind of the block, or the first call of the part.
        calls: call nodes at the microbatch, in order; those of the kind's first block.
        parameters: names of the parameter nodes that they read.
        apart: those of them that are not counted with it (see ``apart_of``).
        entries: what other items made, by folded tensor or door, with its boundary.
        exits: what is made here and read by other items, likewise.
        shares: for each entry, how many different tensors enter there, over the blocks of the
            kind; less than one where blocks read the same.
        loss: the loss, if it is made here.
    """

    key: str
    is_block: bool
    folded: FoldedGraph
    calls: tuple[OpNode, ...]
    parameters: tuple[str, ...]
    apart: frozenset[str]
    entries: Mapping[Ref, int]
    exits: Mapping[Ref, int]
    shares: Mapping[Ref, float]
    loss: Ref | None

    @cached_property
    def by_name(self) -> Mapping[str, OpNode]:
        return {node.name: node for node in self.calls}

    @cached_property
    def reads(self) -> Mapping[str, tuple[Ref, ...]]:
        """The operands of each call, as folded tensors and doors."""
        return {
            node.name: tuple(self.folded.operand(node, ref) for ref in node.operands)
            for node in self.calls
        }

    def allocator(self, ref: Ref) -> Ref:
        """The tensor whose storage ``ref`` shares, as far back as this region goes."""
        while ref.node in self.by_name:
            node = self.by_name[ref.node]
            target = node.alias_of[ref.index] if node.alias_of else None
            if target is None:
                break
            ref = self.folded.operand(node, target)
        return ref

    def is_view(self, node: OpNode) -> bool:
        return is_view(node)

    def is_whole(self, ref: Ref) -> bool:
        """Whether a tensor is a view of something that every rank has whole."""
        ref = self.allocator(ref)
        return not (ref.node in self.by_name or ref in self.entries or ref.node in self.parameters)

    @cached_property
    def needed(self) -> frozenset[str]:
        """Calls of whose results the backward needs some, or what they keep internally."""
        return needed_calls(self.calls, self.reads, self.allocator)


def regions_of(
    stack: Stack, folded: FoldedGraph, nodes: Mapping[str, OpNode], boundaries: tuple[Boundary, ...]
) -> Mapping[str, Region]:
    """The regions of a model by key, in the order of the stack.

    Args:
        nodes: the folded nodes at the microbatch.
    """
    crossing, apart = boundary_of(boundaries), apart_of(stack)
    found: dict[str, Region] = {}
    for number, item in enumerate(stack.items):
        key = key_of(item)
        if key not in found:
            found[key] = _region(stack, folded, nodes, (crossing, apart), number)
    return found


def apart_of(stack: Stack) -> frozenset[str]:
    """Parameters that a block reads and another item as well.

    No block can gather them, or reduce their gradients, by itself: the root of a stage has them
    once, however many of its items read them.
    """
    readers = Counter(name for names in stack.parameters for name in names)
    of_blocks = {
        name
        for item, names in zip(stack.items, stack.parameters, strict=True)
        if item.kind
        for name in names
    }
    return frozenset(name for name in of_blocks if readers[name] > 1)


def key_of(item: Item) -> str:
    """The key of an item's region."""
    return item.kind or item.name


def _region(
    stack: Stack,
    folded: FoldedGraph,
    nodes: Mapping[str, OpNode],
    common: tuple[Mapping[Ref, int], frozenset[str]],
    number: int,
) -> Region:
    item, (crossing, apart) = stack.items[number], common
    calls = tuple(nodes[name] for name in item.calls)
    inside = set(item.calls)
    read = dict.fromkeys(folded.operand(node, ref) for node in calls for ref in node.operands)
    made = (Ref(node.name, index) for node in calls for index in range(len(node.outputs)))
    exits = {ref: crossing[ref] for ref in made if ref in crossing}
    output = folded_ref(stack.graph, stack.graph.output)
    entries = {
        ref: crossing[folded_ref(stack.graph, ref)]
        for ref in read
        if folded_ref(stack.graph, ref) in crossing and ref.node not in inside
    }
    return Region(
        key=key_of(item),
        is_block=bool(item.kind),
        folded=folded,
        calls=calls,
        parameters=stack.parameters[number],
        apart=apart.intersection(stack.parameters[number]),
        entries=entries,
        exits=exits,
        shares=dict.fromkeys(entries, 1.0)
        | {
            Ref(door.name): door.distinct / folded.copies(item.kind)
            for door in folded.doors.get(item.kind, ())
        },
        loss=output if output.node in inside and not item.kind else None,
    )
