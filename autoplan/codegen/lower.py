"""From the global graph and its placements to the functions of one rank.

Blocks become functions of their own. Every instance is lowered, and instances with equal functions
share one class, so that nothing is assumed about what instances of a kind have in common. A
block's inputs are brought to its entry placements by the caller.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.codegen.checks import check_runnable
from autoplan.codegen.choices import Choices
from autoplan.codegen.naming import Names, class_name
from autoplan.codegen.operators import is_random
from autoplan.codegen.program import BlockCall, BlockClass, Function, Program, Value
from autoplan.codegen.scope import Scope
from autoplan.errors import UnsupportedModelError
from autoplan.sharding.placement import Replicate, grad_of
from autoplan.sharding.strategies import Port
from autoplan.trace.graph import Block, OpNode, Ref

_WHOLE = Port(Replicate(), Replicate())
ROOT_CLASS = "ShardedModel"


def lower(choices: Choices) -> Program:
    """The program of every rank.

    Raises:
        UnsupportedModelError: naming the node that cannot run correctly on this mesh.
        PlanError: when a placement does not divide a tensor.
    """
    check_runnable(choices)
    functions = {block.path: _block(choices, block) for block in choices.graph.blocks}
    forward, counts = _forward(choices, functions)
    return Program(
        forward=forward,
        count=_count(choices),
        counts=counts,
        blocks=_classes(choices, functions),
    )


def outside_parameters(choices: Choices, block: Block) -> tuple[str, ...]:
    """Parameters and buffers that a block reads but that are not below its path."""
    nodes = choices.graph.by_name
    return tuple(
        name
        for name in block.parameters
        if nodes[name].kind != "constant" and not nodes[name].target.startswith(f"{block.path}.")
    )


def _classes(choices: Choices, functions: dict[str, Function]) -> tuple[BlockClass, ...]:
    names = Names([ROOT_CLASS])
    found: list[tuple[str, Function, list[str]]] = []
    for kind, blocks in choices.graph.kinds.items():
        for block in blocks:
            function = functions[block.path]
            same = next((c for c in found if c[0] == kind and c[1] == function), None)
            if same is None:
                found.append((kind, function, [block.path]))
            else:
                same[2].append(block.path)
    return tuple(
        BlockClass(
            name=names.new(class_name(kind)), kind=kind, paths=tuple(paths), function=function
        )
        for kind, function, paths in found
    )


def _block(choices: Choices, block: Block) -> Function:
    """The function of one instance, under the names of the first instance of its kind."""
    graph, scope = choices.graph, Scope(choices)
    first = graph.kinds[block.kind][0]
    for index, (ref, model, placement) in enumerate(
        zip(block.inputs, first.inputs, choices.assignment.entries[block.kind], strict=True)
    ):
        scope.input(ref, "x" if index == 0 else choices.name_of(model.node), placement)
    outside = outside_parameters(choices, block)
    for name, model in zip(block.parameters, first.parameters, strict=True):
        node, ref = graph.by_name[name], Ref(name)
        if node.kind == "constant":
            scope.constant(node, choices.name_of(model))
        elif name in outside:
            scope.input(ref, choices.name_of(model), choices.storage(name))
        else:
            path = tuple(node.target.removeprefix(f"{block.path}.").split("."))
            scope.hold(ref, path, choices.storage(name))
    for name, model in zip(block.nodes, first.nodes, strict=True):
        scope.call(graph.by_name[name], choices.name_of(model, block.kind))
    return scope.function(scope.operand(ref) for ref in block.outputs)


def _forward(
    choices: Choices, functions: dict[str, Function]
) -> tuple[Function, tuple[Value, ...]]:
    graph, scope = choices.graph, Scope(choices)
    _root_inputs(choices, scope)
    counts = []
    for ref in choices.hoisted:
        counts.append(scope.input(ref, f"{choices.name_of(ref.node)}_count", Replicate()))
    needed = _needed(choices, [graph.output], known=set(choices.hoisted))
    _root_tensors(choices, scope, needed)
    for unit in _in_order(choices, needed):
        if isinstance(unit, Block):
            _call_block(choices, scope, unit, functions[unit.path])
        else:
            scope.call(unit, choices.name_of(unit.name))
    return scope.function([scope.read(graph.output, _WHOLE)]), tuple(counts)


def _count(choices: Choices) -> Function:
    scope = Scope(choices)
    _root_inputs(choices, scope)
    needed = _needed(choices, choices.hoisted, known=set())
    _root_tensors(choices, scope, needed)
    for unit in _in_order(choices, needed):
        if isinstance(unit, Block):
            raise UnsupportedModelError(
                f"a value that counts over the batch is computed inside the block {unit.path}; "
                "compute it outside the repeated layers"
            )
        scope.call(unit, choices.name_of(unit.name))
    return scope.function([scope.read(ref, _WHOLE) for ref in choices.hoisted])


def _root_inputs(choices: Choices, scope: Scope) -> None:
    for node in choices.graph.of_kind("input"):
        name = f"arg{node.target}" if node.target.isdigit() else node.target
        scope.input(Ref(node.name), name, Replicate())


def _root_tensors(choices: Choices, scope: Scope, needed: set[str]) -> None:
    for node in choices.graph.nodes:
        if node.name in needed and node.kind in ("parameter", "buffer"):
            scope.hold(Ref(node.name), tuple(node.target.split(".")), choices.storage(node.name))
        elif node.name in needed and node.kind == "constant":
            scope.constant(node, choices.name_of(node.name))


def _call_block(choices: Choices, scope: Scope, block: Block, function: Function) -> None:
    args = [
        scope.read(ref, Port(placement, grad_of(placement)))
        for ref, placement in zip(block.inputs, choices.assignment.entries[block.kind], strict=True)
    ]
    args += [scope.operand(Ref(name)) for name in outside_parameters(choices, block)]
    placements = [value.placement for value in function.outputs]
    scope.add(
        BlockCall(
            path=tuple(block.path.split(".")),
            args=tuple(args),
            outputs=tuple(scope.define(list(block.outputs), "x", placements)),
            recomputed=block.path in choices.recomputed,
            is_random=any(is_random(choices.graph.by_name[node]) for node in block.nodes),
        )
    )


def _needed(choices: Choices, targets: list[Ref] | tuple[Ref, ...], known: set[Ref]) -> set[str]:
    """Nodes of the root, and calls of blocks, on which the targets depend."""
    graph = choices.graph
    found: set[str] = set()
    open_refs = [ref for ref in targets if ref not in known]
    while open_refs:
        name = open_refs.pop().node
        if name in found:
            continue
        block = graph.block_of.get(name)
        found.update(block.nodes if block else (name,))
        open_refs += [ref for ref in _reads(choices, name) if ref not in known]
    return found


def _reads(choices: Choices, name: str) -> tuple[Ref, ...]:
    """What a call outside blocks, or the whole block of a call inside, reads from outside."""
    block = choices.graph.block_of.get(name)
    if block is None:
        return choices.graph.by_name[name].operands
    return (*block.inputs, *(Ref(name) for name in outside_parameters(choices, block)))


def _in_order(choices: Choices, needed: set[str]) -> Iterator[OpNode | Block]:
    """Root calls and blocks, each after all that it reads, else in the order of the graph."""
    graph = choices.graph
    position = {node.name: index for index, node in enumerate(graph.nodes)}
    done: set[str] = set()

    def visit(name: str) -> Iterator[OpNode | Block]:
        if name in done or name not in needed or graph.by_name[name].kind != "call":
            return
        block = graph.block_of.get(name)
        group = block.nodes if block else (name,)
        done.update(group)
        before = {ref.node for ref in _reads(choices, name)}
        for operand in sorted(before, key=position.__getitem__):
            yield from visit(operand)
        yield block or graph.by_name[name]

    for node in graph.nodes:
        yield from visit(node.name)
