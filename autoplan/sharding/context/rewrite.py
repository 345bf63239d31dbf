"""From a layout over ``cp`` to the graph of one rank: local shapes, and exchanges where reads need
them.

Shapes, flops and what autograd keeps become those of the rank's share of the tokens; names, blocks
and the fingerprint stay those of the model. Reads of one tensor in one way share an exchange within
a block, and within what lies outside blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from autoplan.errors import PlanError
from autoplan.sharding.context.walk import SAMPLES, TokenLayout, local_target
from autoplan.sharding.exchange import Exchange
from autoplan.sharding.placement import Placement, Replicate, Shard, local_shape
from autoplan.sharding.redistribute import Conversion, conversion
from autoplan.sharding.strategies import Port, Strategy
from autoplan.trace.graph import BatchInt, Block, OpGraph, OpNode, Ref, SavedTensor, TensorMeta


def rank_graph(graph: OpGraph, layout: TokenLayout, cp: int) -> OpGraph:
    """The graph of one of ``cp`` ranks.

    Raises:
        PlanError: blocks of one kind do not run alike on shares of their tokens.
    """
    writer = _Writer(graph, layout, cp)
    for node in graph.nodes:
        writer.node(node)
    found = replace(
        graph,
        nodes=tuple(writer.nodes),
        blocks=tuple(writer.block(block) for block in graph.blocks),
    )
    _check_alike(found, cp)
    return found


class _Writer:
    """Writes the nodes of a rank's graph in order.

    Attributes:
        nodes: as far as written.
    """

    def __init__(self, graph: OpGraph, layout: TokenLayout, cp: int) -> None:
        self.graph = graph
        self.layout = layout
        self.cp = cp
        self.nodes: list[OpNode] = []
        self._by_name: dict[str, OpNode] = {}
        self._exchanges: dict[tuple[str, Ref, Port], Ref] = {}
        self._cuts: dict[Ref, Ref] = {}
        self._of_block: dict[str, list[str]] = {}
        self._weights: set[str] = set()

    def node(self, node: OpNode) -> None:
        """Writes a node, behind the exchanges that it is the first to need."""
        if node.kind == "parameter" or (
            node.operands and all(ref.node in self._weights for ref in node.operands)
        ):
            self._weights.add(node.name)
        if node.kind != "call":
            self._write(node)
            return
        strategy = self.layout.strategies[node.name]
        read = self._reads(node, strategy)
        share = self.cp if strategy.splits_work else 1
        args, kwargs = _renamed((node.args, node.kwargs), iter(read))
        own = dict(zip(node.operands, read, strict=True))
        written = replace(
            node,
            target=(strategy.local_op and local_target(strategy)) or node.target,
            args=args,
            kwargs=kwargs,
            outputs=tuple(
                self._local(meta, placement)
                for meta, placement in zip(node.outputs, strategy.outputs, strict=True)
            ),
            alias_of=tuple(ref and own.get(ref, ref) for ref in node.alias_of),
            flops=node.flops // share,
            backward_flops=node.backward_flops // share,
        )
        saved = tuple(self._saved(kept, written, share) for kept in node.saved)
        self._write(replace(written, saved=saved), self._path(node))
        for index in range(len(node.outputs)):
            self._cut(node, Ref(node.name, index))

    def _cut(self, node: OpNode, ref: Ref) -> None:
        """A rank's part of what was made whole."""
        part = self.layout.placements[ref]
        if ref in self.layout.cuts and isinstance(part, Shard):
            meta, name = self.graph.meta(ref), f"{node.name}.own"
            found = conversion(Replicate(), Port(part, part), differentiable=meta.requires_grad)
            assert found is not None
            made = self._local(meta, part)
            self._write(self._exchange(found).call(name, ref, made, node), self._path(node))
            self._cuts[ref] = Ref(name)

    def block(self, block: Block) -> Block:
        return replace(
            block,
            nodes=tuple(self._of_block[block.path]),
            inputs=tuple(self._cuts.get(ref, ref) for ref in block.inputs),
        )

    def _path(self, node: OpNode) -> str:
        block = self.graph.block_of.get(node.name)
        return block.path if block else ""

    def _write(self, node: OpNode, path: str = "") -> None:
        self.nodes.append(node)
        self._by_name[node.name] = node
        self._of_block.setdefault(path, []).append(node.name)

    def _reads(self, node: OpNode, strategy: Strategy) -> list[Ref]:
        """What a call finds its operands as, after the exchanges that they need."""
        ports = zip(node.operands, strategy.inputs, strict=True)
        return [self._read(node, at, ref, port) for at, (ref, port) in enumerate(ports)]

    def _read(self, reader: OpNode, position: int, ref: Ref, port: Port) -> Ref:
        meta, here, path = self.graph.meta(ref), self.layout.placements[ref], self._path(reader)
        if ref.node in self._weights and here == port.placement:
            return ref  # its gradient may be a term: those of weights are summed once a step
        found = conversion(here, port, differentiable=meta.requires_grad)
        own = self._cuts.get(ref, ref)
        if found is None:
            return own
        if (path, ref, port) not in self._exchanges:
            exchange = self._exchange(found)
            name = f"{reader.name}.{_WORDS[found.forward]}{position}"
            made = self._local(meta, port.placement)
            self._write(exchange.call(name, own, made, reader), path)
            self._exchanges[path, ref, port] = Ref(name)
        return self._exchanges[path, ref, port]

    def _exchange(self, found: Conversion) -> Exchange:
        placements = (found.source, found.target.placement)
        shard = next((each for each in placements if isinstance(each, Shard)), None)
        parts = shard.parts if shard else 1
        samples, rest = divmod(parts, SAMPLES)
        return Exchange(
            forward=found.forward,
            backward=found.backward,
            ranks=self.cp,
            dim=shard and shard.dim,
            parts=BatchInt(samples) if samples and not rest else parts,
        )

    def _local(self, meta: TensorMeta, placement: Placement) -> TensorMeta:
        return replace(meta, shape=local_shape(meta.shape, placement, self.cp))

    def _saved(self, kept: SavedTensor, written: OpNode, share: int) -> SavedTensor:
        if kept.source is None:
            return replace(kept, nbytes=kept.nbytes // share)
        source = kept.source
        if kept.operand is not None:
            source = self._base(written.operands[kept.operand])
        if source.node not in self.graph.by_name:
            meta = self._by_name[source.node].outputs[source.index]
            return replace(kept, source=source, nbytes=meta.nbytes)
        is_whole = kept.source in self.layout.cuts
        is_split = isinstance(self.layout.placements[kept.source], Shard) and not is_whole
        return replace(kept, nbytes=kept.nbytes // (self.cp if is_split else 1))

    def _base(self, ref: Ref) -> Ref:
        """The tensor that allocated the storage of ``ref``."""
        while True:
            aliases = self._by_name[ref.node].alias_of
            target = aliases[ref.index] if aliases else None
            if target is None:
                return ref
            ref = target


_WORDS = {
    "identity": "shared",
    "all_gather": "gathered",
    "slice": "own",
    "mask": "once",
    "all_reduce": "summed",
    "reduce_scatter": "summed",
}


def _renamed(value: Any, refs: Iterator[Ref]) -> Any:
    """Arguments with other tensors, in the order of ``refs_of``."""
    if isinstance(value, Ref):
        return next(refs)
    if isinstance(value, tuple):
        return tuple(_renamed(item, refs) for item in value)
    return value


def _check_alike(graph: OpGraph, cp: int) -> None:
    """Blocks of a kind must stay the same computation."""
    for kind, blocks in graph.kinds.items():
        first = _shapes(graph, blocks[0])
        for block in blocks[1:]:
            if _shapes(graph, block) != first:
                raise PlanError(
                    f"cp={cp} makes {block.path} another computation than {kind}, whose inputs "
                    "arrive with other tokens; use cp=1"
                )


def _shapes(graph: OpGraph, block: Block) -> list[tuple[str, tuple[TensorMeta, ...]]]:
    nodes = (graph.by_name[name] for name in block.nodes)
    return [(node.target, node.outputs) for node in nodes]
