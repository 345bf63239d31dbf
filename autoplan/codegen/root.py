"""What a stage runs outside the blocks: its part of the forward, and the counts ahead of it.

Without a pipeline there is one stage, the root of the model. A stage takes what it receives and
those of the model's inputs that it reads; what neither needs is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set

from autoplan.codegen.choices import Choices
from autoplan.codegen.cuts import Crossing, Cut
from autoplan.codegen.needs import in_order, needed, outside_parameters, reads
from autoplan.codegen.operators import is_dropout, is_random
from autoplan.codegen.program import (
    DRAWS,
    EVALUATE,
    BlockCall,
    Boundary,
    Function,
    StageProgram,
    Value,
)
from autoplan.codegen.scope import Scope
from autoplan.errors import UnsupportedModelError
from autoplan.sharding.placement import Replicate, grad_of
from autoplan.sharding.strategies import Port
from autoplan.trace.graph import Block, OpNode, Ref

_WHOLE = Port(Replicate(), Replicate())


def lower_stage(
    choices: Choices, cut: Cut, name: str, functions: dict[str, Function]
) -> StageProgram:
    """The functions of one stage.

    Raises:
        UnsupportedModelError: when a count depends on a block.
        PlanError: when a placement does not divide a tensor.
    """
    graph = choices.graph
    sent = [crossing.ref for crossing in cut.sends] or list(graph.results)
    known = {crossing.ref for crossing in cut.receives} | set(choices.hoisted)
    nodes = needed(graph, sent, known)
    counted = _counted(choices, nodes, sent)
    ahead = needed(graph, counted, frozenset())
    given = list(graph.of_kind("input"))
    inputs = [node for node in given if node.name in nodes | ahead]
    if counted and not inputs:
        inputs = given[:1]  # counts of targets made in the forward read none but its device
    forward, counts = _forward(choices, cut, functions, (nodes, inputs, counted))
    return StageProgram(
        name=name,
        blocks=tuple(path for path in cut.blocks if path in _blocks_of(choices, nodes)),
        forward=forward,
        count=_count(choices, ahead, inputs, counted),
        receives=_boundaries(choices, cut.receives),
        sends=_boundaries(choices, cut.sends),
        inputs=tuple(index for index, node in enumerate(given) if node in inputs),
        counts=counts,
        tensors=_tensors(choices, nodes | ahead),
    )


def _counted(choices: Choices, nodes: Set[str], sent: Sequence[Ref]) -> tuple[Ref, ...]:
    """The hoisted values that a stage reads, or that its blocks make."""
    read = {ref for name in nodes for ref in reads(choices.graph, name)} | set(sent)
    return tuple(ref for ref in choices.hoisted if ref in read or ref.node in nodes)


def _forward(
    choices: Choices,
    cut: Cut,
    functions: dict[str, Function],
    part: tuple[Set[str], Sequence[OpNode], Sequence[Ref]],
) -> tuple[Function, tuple[Value, ...]]:
    graph, scope = choices.graph, Scope(choices)
    nodes, inputs, counted = part
    chained: list[str] = []
    for crossing in cut.receives:
        node = crossing.ref.node
        name = "x" if node in graph.block_of else choices.name_of(node)
        value = scope.input(crossing.ref, name, crossing.placement)
        if node in graph.block_of:
            chained.append(value.name)
    _inputs(inputs, scope)
    counts = tuple(
        scope.input(ref, f"{choices.name_of(ref.node)}_count", Replicate()) for ref in counted
    )
    _held(choices, scope, nodes)
    for unit in in_order(graph, nodes):
        if isinstance(unit, Block):
            _call_block(choices, scope, unit, functions[unit.path])
        else:
            scope.call(unit, choices.name_of(unit.name))
    sent = [scope.read(crossing.ref, crossing.port) for crossing in cut.sends]
    sent = sent or [scope.read(ref, _WHOLE) for ref in graph.results]
    return scope.function(sent, chained), counts


def _count(
    choices: Choices, nodes: Set[str], inputs: Sequence[OpNode], counted: Sequence[Ref]
) -> Function:
    scope = Scope(choices)
    _inputs(inputs, scope)
    _held(choices, scope, nodes)
    for unit in in_order(choices.graph, nodes):
        if isinstance(unit, Block):
            raise UnsupportedModelError(
                f"a value that counts over the batch is computed inside the block {unit.path}; "
                "compute it outside the repeated layers"
            )
        scope.call(unit, choices.name_of(unit.name))
    function = scope.function([scope.read(ref, _WHOLE) for ref in counted])
    if DRAWS in function.inputs:
        raise UnsupportedModelError(
            "a value that counts over the batch depends on a dropout; count before the dropout"
        )
    return function


def _inputs(inputs: Sequence[OpNode], scope: Scope) -> None:
    for node in inputs:
        name = f"arg{node.target}" if node.target.isdigit() else node.target
        scope.input(Ref(node.name), name, Replicate())


def _held(choices: Choices, scope: Scope, nodes: Set[str]) -> None:
    for node in choices.graph.nodes:
        if node.name in nodes and node.kind in ("parameter", "buffer"):
            scope.hold(Ref(node.name), tuple(node.target.split(".")), choices.storage(node.name))
        elif node.name in nodes and node.kind == "constant":
            scope.constant(node, choices.name_of(node.name))


def _call_block(choices: Choices, scope: Scope, block: Block, function: Function) -> None:
    entries = ((ref, choices.assignment.entry(block, ref)) for ref in block.inputs)
    args = [scope.read(ref, Port(placement, grad_of(placement))) for ref, placement in entries]
    args += [scope.operand(Ref(name)) for name in outside_parameters(choices.graph, block)]
    args += [DRAWS] * (DRAWS in function.inputs)
    nodes = [choices.graph.by_name[node] for node in block.nodes]
    placements = [value.placement for value in function.outputs]
    scope.add(
        BlockCall(
            path=tuple(block.path.split(".")),
            args=tuple(args),
            outputs=tuple(scope.define(list(block.outputs), "x", placements)),
            recomputed=block.path in choices.recomputed,
            method=EVALUATE if choices.evaluates else "",
            is_random=any(is_random(node) and not is_dropout(node) for node in nodes),
        )
    )


def _blocks_of(choices: Choices, nodes: Set[str]) -> set[str]:
    return {block.path for block in choices.graph.blocks if block.nodes[0] in nodes}


def _boundaries(choices: Choices, crossings: Collection[Crossing]) -> tuple[Boundary, ...]:
    return tuple(
        Boundary(
            shape=choices.shape(crossing.ref, crossing.placement),
            dtype=choices.graph.meta(crossing.ref).dtype,
            requires_grad=choices.graph.meta(crossing.ref).requires_grad,
        )
        for crossing in crossings
    )


def _tensors(choices: Choices, nodes: Set[str]) -> frozenset[str]:
    """Targets of the parameters and buffers that calls and blocks among ``nodes`` read."""
    graph = choices.graph
    inside = {name for b in graph.blocks if b.nodes[0] in nodes for name in b.parameters}
    return frozenset(
        graph.by_name[name].target
        for name in inside | nodes
        if graph.by_name[name].kind in ("parameter", "buffer")
    )
