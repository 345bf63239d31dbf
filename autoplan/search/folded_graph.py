"""The model with every repeated block written once.

Blocks of one kind have the same choices, which are priced once: the search sees the root and one
*representative* (the first block) of each kind, with multiplicities. Activations enter a block
through a *door*, a virtual value whose placement is a choice of its own: the conversion from the
producer to the door happens outside the block, those from the door to its readers inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from autoplan.sharding.excerpt import excerpt
from autoplan.trace.graph import Block, OpGraph, OpNode, Ref, TensorMeta

ROOT = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Door:
    """An activation's entry into all blocks of a kind.

    ``source`` is what enters the first block; ``distinct`` is how many different tensors enter
    there in all: one when all blocks read the same.
    """

    name: str
    source: Ref
    meta: TensorMeta
    distinct: int


@dataclass(frozen=True, kw_only=True)
class FoldedGraph:
    """Representatives and multiplicities; node names are those of the original graph.

    Attributes:
        graph: the whole graph, at the batch whose sizes are meant.
        region: block kind of each folded node (parameters and calls), ``ROOT`` outside.
        nodes: the folded nodes in topological order.
        doors: entries of each block kind, in the order of ``Block.inputs``.
    """

    graph: OpGraph
    region: dict[str, str]
    nodes: tuple[OpNode, ...]
    doors: dict[str, tuple[Door, ...]]

    @cached_property
    def _door_of(self) -> dict[str, dict[Ref, Ref]]:
        return {
            kind: {
                ref: Ref(door.name)
                for ref, door in zip(self.graph.kinds[kind][0].inputs, doors, strict=True)
            }
            for kind, doors in self.doors.items()
        }

    def copies(self, region: str) -> int:
        """How many blocks a region stands for."""
        return len(self.graph.kinds[region]) if region else 1

    def operand(self, node: OpNode, ref: Ref) -> Ref:
        """What ``node`` reads as ``ref``: the tensor itself, or the door through which it came."""
        region = self.region[node.name]
        return self._door_of[region].get(ref, ref) if region else ref

    @cached_property
    def _few(self) -> OpGraph:
        return excerpt(self.graph, {node.name for node in self.nodes})

    def at_batch(self, batch: int) -> FoldedSizes:
        """Sizes of the folded nodes and doors when ``batch`` samples are computed at once."""
        few = self._few.at_batch(batch)
        return FoldedSizes(
            batch=batch,
            nodes=few.by_name,
            doors={
                door.name: few.meta(door.source) for doors in self.doors.values() for door in doors
            },
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class FoldedSizes:
    """The folded nodes and all they read, written for one batch, and what enters at each door."""

    batch: int
    nodes: dict[str, OpNode]
    doors: dict[str, TensorMeta]

    def meta(self, ref: Ref) -> TensorMeta:
        """Shape and dtype of a folded tensor, door or not."""
        if ref.node in self.doors:
            return self.doors[ref.node]
        return self.nodes[ref.node].outputs[ref.index]


def door_name(kind: str, number: int) -> str:
    """Name of a block kind's ``number``-th activation as a folded node."""
    return f"{kind}<{number}"


def fold(graph: OpGraph) -> FoldedGraph:
    """The folded reading of a graph."""
    owner = _owners(graph)
    kept = tuple(
        node
        for node in graph.nodes
        if node.name not in owner or owner[node.name] is graph.kinds[owner[node.name].kind][0]
    )
    region = {node.name: owner[node.name].kind if node.name in owner else ROOT for node in kept}
    doors = {kind: _doors(graph, kind) for kind in graph.kinds}
    return FoldedGraph(graph=graph, region=region, nodes=kept, doors=doors)


def base_of(graph: OpGraph, ref: Ref) -> Ref:
    """The tensor that allocated the storage of ``ref``."""
    while True:
        aliases = graph.by_name[ref.node].alias_of
        target = aliases[ref.index] if aliases else None
        if target is None:
            return ref
        ref = target


def _owners(graph: OpGraph) -> dict[str, Block]:
    """The block of every call in one, and of every parameter that one block alone reads."""
    owner = dict(graph.block_of)
    for node in graph.nodes:
        if node.kind == "call":
            continue
        readers = {
            name for index in range(len(node.outputs))
            for name in graph.readers.get(Ref(node.name, index), ())
        }  # fmt: skip
        blocks = {graph.block_of[name].path if name in graph.block_of else "" for name in readers}
        if node.kind != "input" and len(blocks) == 1 and "" not in blocks:
            owner[node.name] = graph.block_of[next(iter(readers))]
    return owner


def _doors(graph: OpGraph, kind: str) -> tuple[Door, ...]:
    blocks = graph.kinds[kind]
    return tuple(
        Door(
            name=door_name(kind, number),
            source=ref,
            meta=graph.meta(ref),
            distinct=len({base_of(graph, block.inputs[number]) for block in blocks}),
        )
        for number, ref in enumerate(blocks[0].inputs)
    )
