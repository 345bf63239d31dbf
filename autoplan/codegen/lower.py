"""From the global graph and its placements to the functions of one rank.

Blocks become functions of their own. Every instance is lowered, and instances with equal functions
share one class, so that nothing is assumed about what instances of a kind have in common. A
block's inputs are brought to its entry placements by the caller.
"""

from __future__ import annotations

from autoplan.codegen.checks import check_evaluable, check_runnable
from autoplan.codegen.choices import Choices
from autoplan.codegen.cuts import cut_stages
from autoplan.codegen.naming import Names, class_name
from autoplan.codegen.needs import outside_parameters
from autoplan.codegen.program import BlockClass, Function, Program
from autoplan.codegen.root import lower_stage
from autoplan.codegen.scope import Scope
from autoplan.trace.graph import Block, Ref

ROOT_CLASS = "ShardedModel"


def lower(choices: Choices) -> Program:
    """The program of every rank.

    Raises:
        UnsupportedModelError: naming the node that cannot run correctly on this mesh.
        PlanError: when a placement does not divide a tensor, or the stages are not the model's.
    """
    check = check_evaluable if choices.evaluates else check_runnable
    check(choices)
    functions = {block.path: _block(choices, block) for block in choices.graph.blocks}
    cuts = cut_stages(choices)
    names = [ROOT_CLASS] if len(cuts) == 1 else [f"Stage{index}" for index in range(len(cuts))]
    return Program(
        stages=tuple(
            lower_stage(choices, cut, name, functions)
            for cut, name in zip(cuts, names, strict=True)
        ),
        blocks=_classes(choices, functions, names),
        evaluates=choices.evaluates,
    )


def _classes(
    choices: Choices, functions: dict[str, Function], taken: list[str]
) -> tuple[BlockClass, ...]:
    names = Names(taken)
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
    for index, (ref, model) in enumerate(zip(block.inputs, first.inputs, strict=True)):
        name = "x" if index == 0 else choices.name_of(model.node)
        scope.input(ref, name, choices.assignment.entry(block, ref))
    outside = outside_parameters(graph, block)
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
    outputs = [scope.operand(ref) for ref in block.outputs]
    return scope.function(outputs, again=choices.again.get(block.path))
