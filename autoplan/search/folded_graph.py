"""The model with every repeated block written once.

Blocks of one kind share one set of choices, so the search sees the root and one *representative*
(the first block) of each kind, with multiplicities. Activations enter a block through a *door*, a
virtual value whose placement is a choice of its own: the conversion from the producer to the door
happens outside the block, those from the door to its readers inside. Edges between blocks are
folded by who reads a tensor and counted: in a chain of L layers, L - 1 outputs feed the next door.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from autoplan.sharding.excerpt import excerpt
from autoplan.trace.graph import Block, OpGraph, OpNode, Ref, TensorMeta

ROOT = ""
LOSS = "<loss"


@dataclass(frozen=True, slots=True)
class Use:
    """One reading of a tensor: operand number ``operand`` of a call, or -1 for entering a door."""

    reader: str
    operand: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FoldedTensor:
    """A tensor with the readers that share its conversions.

    Attributes:
        ref: the tensor, produced by a folded node or a door.
        region: the block kind inside which the conversions run; ``ROOT`` when outside of blocks.
        copies: how many such tensors the whole model has.
        uses: who reads it.
    """

    ref: Ref
    region: str
    copies: int
    uses: tuple[Use, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Door:
    """An activation's entry into all blocks of a kind.

    ``source`` is what enters the first block; ``distinct`` is how many different tensors enter
    there in all: one when all blocks read the same.
    """

    name: str
    kind: str
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
        tensors: all that is read, folded.
    """

    graph: OpGraph
    region: dict[str, str]
    nodes: tuple[OpNode, ...]
    doors: dict[str, tuple[Door, ...]]
    tensors: tuple[FoldedTensor, ...]

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self.graph.kinds)

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
    tensors = (
        *_inside(graph),
        *_from_doors(graph),
        *_outside(graph, owner),
    )
    return FoldedGraph(graph=graph, region=region, nodes=kept, doors=doors, tensors=tensors)


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
            kind=kind,
            source=ref,
            meta=graph.meta(ref),
            distinct=len({base_of(graph, block.inputs[number]) for block in blocks}),
        )
        for number, ref in enumerate(blocks[0].inputs)
    )


def _uses(graph: OpGraph, readers: Iterator[str], ref: Ref) -> Iterator[Use]:
    for name in readers:
        for number, operand in enumerate(graph.by_name[name].operands):
            if operand == ref:
                yield Use(name, number)


def _inside(graph: OpGraph) -> Iterator[FoldedTensor]:
    """Tensors of a representative, or values of the root, read inside a representative."""
    for kind, blocks in graph.kinds.items():
        inputs = set(blocks[0].inputs)
        members = set(blocks[0].nodes)
        for ref, readers in graph.readers.items():
            if ref in inputs:
                continue
            uses = tuple(_uses(graph, (name for name in readers if name in members), ref))
            if uses:
                yield FoldedTensor(ref=ref, region=kind, copies=len(blocks), uses=uses)


def _from_doors(graph: OpGraph) -> Iterator[FoldedTensor]:
    for kind, blocks in graph.kinds.items():
        members = set(blocks[0].nodes)
        for number, ref in enumerate(blocks[0].inputs):
            readers = (name for name in graph.readers[ref] if name in members)
            yield FoldedTensor(
                ref=Ref(door_name(kind, number)),
                region=kind,
                copies=len(blocks),
                uses=tuple(_uses(graph, readers, ref)),
            )


def _outside(graph: OpGraph, owner: dict[str, Block]) -> Iterator[FoldedTensor]:
    """Tensors read by the root or entering blocks, counted by folded producer and readers."""
    entering: dict[Ref, list[Use]] = {}
    for block in graph.blocks:
        for number, ref in enumerate(block.inputs):
            use = Use(door_name(block.kind, number), -1)
            if use not in entering.setdefault(ref, []):
                entering[ref].append(use)
    entering.setdefault(graph.output, []).append(Use(LOSS, -1))
    counted: Counter[tuple[Ref, tuple[Use, ...]]] = Counter()
    for ref in {**graph.readers, graph.output: ()}:
        root = (n for n in graph.readers.get(ref, ()) if n not in graph.block_of)
        uses = (*_uses(graph, root, ref), *entering.get(ref, ()))
        if uses:
            name = graph.representative[ref.node] if ref.node in owner else ref.node
            counted[Ref(name, ref.index), uses] += 1
    for (ref, uses), copies in counted.items():
        yield FoldedTensor(ref=ref, region=ROOT, copies=copies, uses=uses)
