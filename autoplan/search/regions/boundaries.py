"""What crosses between the items of a model, and which crossings share one placement.

A tensor that one item makes and another reads crosses in a *boundary placement*: its producer
converts to it, its readers convert from it. Blocks of a kind are alike, so what enters all of them
at one door crosses in one placement, and so does what leaves all of them. Tensors that doors and
outputs join so are one boundary: in a decoder, the result of the embedding, what enters and leaves
every block, and what the last norm reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autoplan.search.folded_graph import FoldedSizes, door_name
from autoplan.search.space import placements_of
from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.placement import Placement, Replicate
from autoplan.trace.graph import OpGraph, Ref, TensorMeta
from autoplan.trace.stack import Item, Stack


@dataclass(frozen=True, kw_only=True, slots=True)
class Boundary:
    """Tensors that all cross in one placement.

    Attributes:
        name: the first of them, by its node.
        placements: in which they may cross.
        meta: shape and dtype of each at the microbatch; it learns if any of them does.
        members: folded tensors and doors.
    """

    name: str
    placements: tuple[Placement, ...]
    meta: TensorMeta
    members: tuple[Ref, ...]


def folded_ref(graph: OpGraph, ref: Ref) -> Ref:
    """The tensor's counterpart in the first block of its kind, or itself outside blocks."""
    return Ref(graph.representative.get(ref.node, ref.node), ref.index)


def boundaries_of(stack: Stack, sizes: FoldedSizes, axis: MeshAxis) -> tuple[Boundary, ...]:
    """All boundaries of a model on ``tp``, in the order in which items first read them."""
    whole = folded_ref(stack.graph, stack.graph.output)
    return tuple(_boundary(group, sizes, axis, is_whole=whole in group) for group in _groups(stack))


def _boundary(
    group: tuple[Ref, ...], sizes: FoldedSizes, axis: MeshAxis, *, is_whole: bool
) -> Boundary:
    metas = [sizes.meta(ref) for ref in group]
    made = next(ref for ref in group if ref.node not in sizes.doors)
    offered = tuple(placements_of(sizes.meta(made), axis))
    meta = sizes.meta(made)
    learns = any(each.requires_grad for each in metas)
    return Boundary(
        name=made.node if made.index == 0 else f"{made.node}[{made.index}]",
        placements=(Replicate(),) if is_whole else offered,
        meta=TensorMeta(
            shape=meta.shape, dtype=meta.dtype, batch_dims=meta.batch_dims, requires_grad=learns
        ),
        members=group,
    )


def _groups(stack: Stack) -> tuple[tuple[Ref, ...], ...]:
    """Folded tensors and doors that are joined; all in the order in which they are met."""
    group: dict[Ref, set[Ref]] = {}

    def join(*refs: Ref) -> None:
        joined = {ref for met in refs for ref in group.get(met, {met})}
        for ref in refs:
            group.setdefault(ref, joined)
        group.update(dict.fromkeys(joined, joined))

    for ref, door in _crossings(stack):
        made = folded_ref(stack.graph, ref)
        join(made, door) if door is not None else join(made)
    out = stack.graph.output
    if out.node in stack.graph.block_of:
        join(folded_ref(stack.graph, out))
    found: dict[frozenset[Ref], list[Ref]] = {}
    for ref, joined in group.items():
        found.setdefault(frozenset(joined), []).append(ref)
    return tuple(map(tuple, found.values()))


def _crossings(stack: Stack) -> Iterator[tuple[Ref, Ref | None]]:
    """All that items read of others, with the door if a block does."""
    blocks = {block.path: block for block in stack.graph.blocks}
    for number, item in enumerate(stack.items):
        if item.kind:
            for door, ref in enumerate(blocks[item.name].inputs):
                if ref.node in stack.position:
                    yield ref, Ref(door_name(item.kind, door))
            continue
        for ref in _read(stack.graph, item):
            if stack.position.get(ref.node, number) != number:
                yield ref, None


def _read(graph: OpGraph, item: Item) -> Iterator[Ref]:
    for name in item.calls:
        yield from graph.by_name[name].operands


def boundary_of(boundaries: tuple[Boundary, ...]) -> Mapping[Ref, int]:
    """The boundary in which each folded tensor or door crosses."""
    return {ref: number for number, each in enumerate(boundaries) for ref in each.members}
