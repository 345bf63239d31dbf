"""What autograd keeps from forward to backward, as a function of the choices.

A storage kept by several operators counts once for each placement in which one of them reads it: a
reader that converts keeps the converted copy. Views share the storage of what they are views of, so
a read is followed back through views, in the placement that each view's own strategy implies; where
no strategy of a view gives the placement read, the read is of a copy of the view.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container
from dataclasses import dataclass, field

from autoplan.search.folded_graph import FoldedSizes
from autoplan.search.space import Space
from autoplan.sharding.placement import Placement, local_fraction
from autoplan.sharding.strategies import Strategy
from autoplan.trace.graph import OpNode, Ref, SavedTensor

_Key = tuple[str, Ref, Placement | None, float]


@dataclass(kw_only=True, slots=True)
class KeptStorage:
    """A storage of one block (or the root) for one microbatch on one rank.

    Attributes:
        source: the tensor or door whose storage it is; a node for what it keeps internally.
        region: the block kind where it is kept.
        nbytes: bytes on one rank.
        holders: by decision, the choices that keep it.
    """

    source: Ref
    region: str
    nbytes: float
    holders: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))


def kept_storages(space: Space, sizes: FoldedSizes) -> tuple[KeptStorage, ...]:
    """All storages that some choice keeps."""
    found: dict[_Key, KeptStorage] = {}
    for name, options in zip(space.names, space.strategies, strict=True):
        node = sizes.nodes.get(name)
        if node is None or name not in space.folded.region:
            continue
        region = space.folded.region[name]
        for number, strategy in enumerate(options):
            for index, kept in enumerate(node.saved):
                source, placement, fraction = _read(space, node, strategy, kept, index)
                key = region, source, placement, fraction
                storage = found.setdefault(key, KeptStorage(source=source, region=region, nbytes=0))
                storage.nbytes = max(storage.nbytes, kept.nbytes * fraction)
                storage.holders[space.number[name]].add(number)
    return tuple(found.values())


def _read(
    space: Space, node: OpNode, strategy: Strategy, kept: SavedTensor, index: int
) -> tuple[Ref, Placement | None, float]:
    """The storage, placement and share of bytes of something that a node keeps."""
    if kept.operand is not None:
        placement = strategy.inputs[kept.operand].placement
        source = space.folded.operand(node, node.operands[kept.operand])
        return (
            *followed(space, source, placement, space.folded.region),
            local_fraction(placement, space.tp),
        )
    own = kept.source
    if own is not None and own.node == node.name:
        placement = strategy.outputs[own.index]
        return (
            *followed(space, own, placement, space.folded.region),
            local_fraction(placement, space.tp),
        )
    share = 1 / space.tp if strategy.splits_work else 1.0
    return Ref(node.name, -1 - index), None, share


def followed(
    space: Space, ref: Ref, placement: Placement, within: Container[str]
) -> tuple[Ref, Placement]:
    """The allocated tensor behind ``ref``, in the placement that ``placement`` of it implies.

    Args:
        within: folded nodes, of which views are followed.
    """
    by_name = space.folded.graph.by_name
    while ref.node in within:
        node = by_name[ref.node]
        target = node.alias_of[ref.index] if node.alias_of else None
        if target is None:
            break
        position = node.operands.index(target)
        before = next(
            (
                strategy.inputs[position].placement
                for strategy in space.of(node.name)
                if strategy.outputs[ref.index] == placement
            ),
            None,
        )
        if before is None:
            break
        ref, placement = space.folded.operand(node, target), before
    return ref, placement
