"""Whether the backward of a model's stages can be split, as zero-bubble schedules do.

PyTorch splits a stage's backward (``torch.distributed.pipelining._backward``) at the nodes where
the way from a weight meets the way from what the stage received, and computes each weight's
gradient later, from there. A weight whose way reaches an output of the stage without such a meeting
gets no gradient, without an error; where the ways of two weights share a part, or a weight meets at
several places, parts of the graph are run twice. Neither happens when each weight's way is a plain
chain: one reader, whose result has one reader, up to the operator that also reads what was
received. The first stage receives nothing, and its backward is not split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from itertools import pairwise

from autoplan.plan import StagePlan
from autoplan.sharding.stages import stage_starts
from autoplan.trace.graph import OpGraph, OpNode, Ref
from autoplan.trace.stack import Stack, stack_of


def split_obstacle(graph: OpGraph, stages: Sequence[StagePlan]) -> str | None:
    """Why the backward of a stage cannot be split, by the first weight; None when all can.

    Raises:
        PlanError: when the stages are no ranges of the model.
    """
    stack = stack_of(graph)
    starts = stage_starts(stack, stages)
    for start, end in pairwise([*starts[1:], len(stack.items)]):
        parts = {name: 0 for item in stack.items[start:end] for name in item.calls}
        weight = _unsplit(stack, start, parts)
        if weight is not None:
            return (
                f"{weight} is read by other operators than one that also reads what "
                f"the stage at {stack.items[start].name} receives"
            )
    return None


def split_obstacle_of_any(graph: OpGraph) -> str | None:
    """Why the backward cannot be split wherever the model is cut; None when it always can.

    A stage that begins at the second item has the fewest tensors that follow from what it received
    and the most readers of each weight, and no chain is cut that lies within one item: where that
    stage and items pass, all do.
    """
    stack = stack_of(graph)
    if len(stack.items) < 2:
        return None
    parts = {name: n for n, item in enumerate(stack.items[1:]) for name in item.calls}
    weight = _unsplit(stack, 1, parts)
    if weight is None:
        return None
    return (
        f"{weight} can come to be read by other operators than one that also reads what its stage "
        "receives"
    )


def _unsplit(stack: Stack, start: int, parts: Mapping[str, int]) -> str | None:
    """The first weight whose way is no chain, among the calls of a stage.

    Args:
        start: the stage's first item.
        parts: for every call of the stage the number of the part of it that chains may not leave.
    """
    graph = stack.graph
    names = list(parts)
    reached = _reached(stack, start, names)
    readers = _readers(graph, parts)
    for weight in _weights(graph, names):
        if not _is_chain(graph, weight, readers, reached):
            return weight.node
    return None


def _reached(stack: Stack, start: int, names: Sequence[str]) -> set[Ref]:
    """Tensors whose gradients flow back to what the stage received, and those received."""
    graph = stack.graph
    found = {ref for ref in stack.crossings[start - 1] if graph.meta(ref).requires_grad}
    for name in names:
        node = graph.by_name[name]
        if found.intersection(node.operands):
            found.update(_differentiable(node))
    return found


def _readers(graph: OpGraph, parts: Mapping[str, int]) -> dict[Ref, list[str]]:
    """The calls of the stage that read each tensor; an empty name stands for other parts."""
    found: dict[Ref, list[str]] = {}
    for ref, readers in graph.readers.items():
        own = [name for name in readers if name in parts]
        home = parts.get(ref.node)
        if home is not None and any(parts.get(name) != home for name in readers):
            own.append("")
        found[ref] = own
    return found


def _weights(graph: OpGraph, names: Sequence[str]) -> dict[Ref, None]:
    kinds = ((ref, graph.by_name[ref.node]) for name in names for ref in _operands(graph, name))
    return {ref: None for ref, node in kinds if node.kind == "parameter" and _differentiable(node)}


def _is_chain(
    graph: OpGraph, weight: Ref, readers: Mapping[Ref, list[str]], reached: Set[Ref]
) -> bool:
    ref = weight
    while True:
        if ref == graph.output or len(readers.get(ref, ())) != 1 or not readers[ref][0]:
            return False
        reader = graph.by_name[readers[ref][0]]
        if not reached.isdisjoint(reader.operands):
            return True
        flows = [o for o in reader.operands if graph.meta(o).requires_grad]
        made = _differentiable(reader)
        if flows != [ref] or len(made) != 1:
            return False
        ref = made[0]


def _operands(graph: OpGraph, name: str) -> tuple[Ref, ...]:
    return graph.by_name[name].operands


def _differentiable(node: OpNode) -> list[Ref]:
    return [Ref(node.name, index) for index, meta in enumerate(node.outputs) if meta.requires_grad]
