"""From the placements that a plan holds to strategies and placements of the nodes of a graph.

A plan names things relative to the block kind they are in, so that one entry stands for all blocks
of a region; blocks of a kind correspond index by index. Blocks of one kind may be in several
regions, each with placements of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoplan.errors import PlanError
from autoplan.plan import RegionPlan
from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.placement import Placement, Replicate, Shard, divides, grad_of, parse
from autoplan.sharding.redistribute import is_possible
from autoplan.sharding.rules import GraphRules
from autoplan.sharding.strategies import Port, Strategy
from autoplan.trace.graph import Block, OpGraph, Ref

ROOT = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """Choices on the ``tp`` axis.

    Attributes:
        strategies: of every call, by node name.
        storage: placement of every parameter, by node name.
        entries: placement in which each of ``Block.inputs`` enters a block, by block path.
    """

    strategies: Mapping[str, Strategy]
    storage: Mapping[str, Placement]
    entries: Mapping[str, tuple[Placement, ...]]

    def entry(self, block: Block, ref: Ref) -> Placement:
        """The placement in which a tensor, one of ``block.inputs``, enters the block."""
        return self.entries[block.path][block.inputs.index(ref)]


def relative_name(kind: str, full: str) -> str:
    """The name of a node as a plan holds it under a block kind; unchanged when not below it."""
    for separator in (".", "/"):
        if kind and full.startswith(kind + separator):
            return full.removeprefix(kind + separator)
    return full


def assign(graph: OpGraph, regions: Sequence[RegionPlan], tp_size: int) -> Assignment:
    """The choices of a plan, for every node of the graph.

    Raises:
        PlanError: naming what the plan misses, has too much, or cannot hold.
    """
    _same_names("region", {ROOT, *graph.kinds}, {region.kind for region in regions}, "the plan")
    _check_blocks(graph, regions)
    reader = _Reader(graph, MeshAxis("tp", tp_size, shares_samples=True))
    blocks = {block.path: block for block in graph.blocks}
    for region in regions:
        if region.kind == ROOT:
            reader.root(region)
        else:
            reader.kind(region, [blocks[path] for path in region.blocks])
    assignment = Assignment(
        strategies=reader.strategies, storage=reader.storage, entries=reader.entries
    )
    _check_edges(graph, assignment)
    return assignment


def regions_of(
    graph: OpGraph,
    strategies: Mapping[str, str],
    storage: Mapping[str, Placement],
    entries: Mapping[str, tuple[Placement, ...]],
    recomputed: frozenset[str] = frozenset(),
) -> tuple[RegionPlan, ...]:
    """The regions of a plan from choices, the inverse of ``assign``.

    Args:
        strategies: labels, by node name, of all calls outside blocks and in the first block of
            each kind.
        storage: placements of parameters, by node name, likewise.
        entries: placements of ``Block.inputs``, by block kind.
        recomputed: paths of the blocks that are recomputed in the backward.
    """
    root = RegionPlan(
        kind=ROOT,
        blocks=(),
        recomputed=(),
        parameters={name: repr(storage[name]) for name in _root_parameters(graph)},
        operators={name: strategies[name] for name in _root_calls(graph)},
        inputs=(),
    )
    return (root, *(
        RegionPlan(
            kind=kind,
            blocks=tuple(block.path for block in blocks),
            recomputed=tuple(block.path for block in blocks if block.path in recomputed),
            parameters={
                relative_name(kind, name): repr(storage[name])
                for name in _parameters(graph, blocks[0])
            },
            operators={relative_name(kind, name): strategies[name] for name in blocks[0].nodes},
            inputs=tuple(repr(placement) for placement in entries[kind]),
        )
        for kind, blocks in graph.kinds.items()
    ))  # fmt: skip


class _Reader:
    """Collects the choices region by region."""

    def __init__(self, graph: OpGraph, axis: MeshAxis) -> None:
        self.graph = graph
        self.rules = GraphRules(graph)
        self.axis = axis
        self.strategies: dict[str, Strategy] = {}
        self.storage: dict[str, Placement] = {}
        self.entries: dict[str, tuple[Placement, ...]] = {}

    def root(self, region: RegionPlan) -> None:
        calls, parameters = _root_calls(self.graph), _root_parameters(self.graph)
        _same_names("operator", calls, region.operators, "the root region")
        _same_names("parameter", parameters, region.parameters, "the root region")
        for name in calls:
            self.strategies[name] = self._strategy(name, region.operators[name])
        for name in parameters:
            self._store(name, region.parameters[name])

    def kind(self, region: RegionPlan, blocks: Sequence[Block]) -> None:
        kind = region.kind
        first = self.graph.kinds[kind][0]
        where = f"region {kind}"
        _known_names("recomputed block", region.recomputed, region.blocks, where)
        operators = {relative_name(kind, name): name for name in first.nodes}
        parameters = {relative_name(kind, name): name for name in _parameters(self.graph, first)}
        _same_names("operator", operators, region.operators, where)
        _known_names("recomputed operator", region.recomputed_operators, operators, where)
        _same_names("parameter", parameters, region.parameters, where)
        entries = self._entries(region, first)
        chosen = [
            self._strategy(full, region.operators[short]) for short, full in operators.items()
        ]
        for block in blocks:
            self.entries[block.path] = entries
            self.strategies.update(zip(block.nodes, chosen, strict=True))
            for short, full in zip(parameters, _parameters(self.graph, block), strict=True):
                self._store(full, region.parameters[short])

    def _entries(self, region: RegionPlan, first: Block) -> tuple[Placement, ...]:
        if len(region.inputs) != len(first.inputs):
            raise PlanError(
                f"region {region.kind} has {len(region.inputs)} input placements, but the block "
                f"reads {len(first.inputs)} activations; plan again"
            )
        return tuple(
            self._placement(text, ref, f"input {ref.node} of region {region.kind}")
            for text, ref in zip(region.inputs, first.inputs, strict=True)
        )

    def _strategy(self, name: str, label: str) -> Strategy:
        offered = self.rules.strategies(self.graph.by_name[name], self.axis)
        for strategy in offered:
            if strategy.label == label:
                return strategy
        labels = ", ".join(strategy.label for strategy in offered)
        raise PlanError(
            f"operator {name} has no strategy {label!r} with tp={self.axis.size}; "
            f"choose one of {labels}"
        )

    def _store(self, name: str, text: str) -> None:
        placement = self._placement(text, Ref(name), f"parameter {name}")
        if isinstance(placement, Shard) and placement.parts != 1:
            raise PlanError(f"parameter {name} cannot be stored as {text}; use parts=1")
        if self.storage.setdefault(name, placement) != placement:
            raise PlanError(
                f"parameter {name} is stored as {self.storage[name]!r} in one region and as {text} "
                "in another; give both the same placement"
            )

    def _placement(self, text: str, ref: Ref, what: str) -> Placement:
        try:
            placement = parse(text)
        except ValueError as error:
            raise PlanError(f"{what}: {error}") from error
        meta = self.graph.meta(ref)
        if not divides(placement, meta.shape, self.axis.size):
            raise PlanError(
                f"{what}: shape {meta.shape} cannot be {text} over tp={self.axis.size}; "
                "choose a dim that divides, or Replicate()"
            )
        return placement


def _check_blocks(graph: OpGraph, regions: Sequence[RegionPlan]) -> None:
    """Every block is in one region of its kind, and there is one root region."""
    for kind, blocks in {ROOT: (), **graph.kinds}.items():
        own = [region for region in regions if region.kind == kind]
        given = [path for region in own for path in region.blocks]
        where = f"region {kind}"
        _same_names("block", [block.path for block in blocks], given, where)
        twice = next((path for path in given if given.count(path) > 1), None)
        if twice or (kind == ROOT and len(own) > 1) or (kind and not all(r.blocks for r in own)):
            what = f"block {twice!r} twice" if twice else "a region without blocks, or two roots"
            raise PlanError(f"the plan has {what}; plan this model again")


def _root_calls(graph: OpGraph) -> tuple[str, ...]:
    return tuple(node.name for node in graph.of_kind("call") if node.name not in graph.block_of)


def _root_parameters(graph: OpGraph) -> tuple[str, ...]:
    """Parameters that a call outside blocks reads, or that nothing reads."""
    inside = {name for block in graph.blocks for name in block.parameters}
    return tuple(
        node.name
        for node in graph.of_kind("parameter")
        if node.name not in inside
        or any(reader not in graph.block_of for reader in graph.readers[Ref(node.name)])
    )


def _parameters(graph: OpGraph, block: Block) -> tuple[str, ...]:
    return tuple(name for name in block.parameters if graph.by_name[name].kind == "parameter")


def _same_names(what: str, expected: Iterable[str], given: Iterable[str], where: str) -> None:
    expected = set(expected)
    _known_names(what, given, expected, where)
    for name in sorted(expected - set(given)):
        raise PlanError(f"{where} lacks {what} {name!r}; plan this model again")


def _known_names(what: str, given: Iterable[str], known: Iterable[str], where: str) -> None:
    for name in sorted(set(given) - set(known)):
        raise PlanError(f"{where} has {what} {name!r}, which the model lacks; plan it again")


def _check_edges(graph: OpGraph, assignment: Assignment) -> None:
    """Every reader, and every block entry, can follow the producer of what it reads."""

    def produced(ref: Ref) -> Placement:
        if ref.node in assignment.strategies:
            return assignment.strategies[ref.node].outputs[ref.index]
        return assignment.storage.get(ref.node, Replicate())

    for block in graph.blocks:
        for ref, placement in zip(block.inputs, assignment.entries[block.path], strict=True):
            port = Port(placement, grad_of(placement))
            _check_edge(f"block {block.path}", ref, produced(ref), port)
    for node in graph.of_kind("call"):
        block = graph.block_of.get(node.name)
        entries = (
            dict(zip(block.inputs, assignment.entries[block.path], strict=True)) if block else {}
        )
        for ref, port in zip(node.operands, assignment.strategies[node.name].inputs, strict=True):
            source = entries[ref] if ref in entries else produced(ref)
            _check_edge(f"operator {node.name}", ref, source, port)


def _check_edge(reader: str, ref: Ref, source: Placement, port: Port) -> None:
    if not is_possible(source, port):
        raise PlanError(
            f"{reader} reads {ref.node} as {port.placement!r}, but it is {source!r}; "
            "change the strategy of either"
        )
