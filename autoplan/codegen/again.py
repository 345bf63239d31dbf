"""What of a block runs again in its backward, call by call.

A plan names operators and inputs. The rest follows, as the search has priced it
(``search.regions``): an operator whose result the backward needs runs again if it is named; where
it does, or an input is converted again, so is what the backward needs of it in other placements; a
weight in another placement is made again if none but operators that run again read it. What merely
renames memory (views, conversions that pass a tensor on) never does; views that copy where strides
leave no choice run again with what they read, so that no copy stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autoplan.codegen.operators import is_dropout, is_random
from autoplan.codegen.program import (
    Call,
    Convert,
    Function,
    Held,
    Operand,
    Statement,
    Value,
    is_renaming,
    operands,
)
from autoplan.errors import PlanError
from autoplan.plan import RegionPlan
from autoplan.sharding.assignment import ROOT, relative_name
from autoplan.trace.graph import Block, OpGraph, OpNode
from autoplan.trace.needed import needed_of_block

_MAY_COPY = frozenset(
    {"aten.reshape.default", "aten.flatten.using_ints", "aten.contiguous.default"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Again:
    """What runs again in the backward of one block.

    Attributes:
        calls: names of its nodes; no views.
        inputs: numbers among ``Block.inputs`` whose conversions do.
    """

    calls: frozenset[str]
    inputs: frozenset[int]


def again_of(graph: OpGraph, regions: Sequence[RegionPlan]) -> dict[str, Again]:
    """What runs again, by the path of the block; whole blocks that do are not listed.

    Raises:
        PlanError: when something is to run again that cannot.
    """
    reason = again_obstacle(graph, regions)
    if reason is not None:
        raise PlanError(reason)
    blocks = {block.path: block for block in graph.blocks}
    found: dict[str, Again] = {}
    for region in regions:
        if region.recomputed_operators or region.reconverted_inputs:
            for path in region.blocks:
                if path not in region.recomputed:
                    found[path] = _of_block(graph, blocks[path], region)
    return found


def again_obstacle(graph: OpGraph, regions: Sequence[RegionPlan]) -> str | None:
    """Why the operators that a plan wants to run again cannot, with the cure; None if they can."""
    for region in regions:
        wanted = region.recomputed_operators
        if region.kind == ROOT and wanted:
            return (
                f"{wanted[0]} is outside the repeated layers, where nothing can run again in the "
                "backward: recompute nothing in the root region"
            )
        for node in _first_nodes(graph, region.kind):
            drawn = is_random(node) and not is_dropout(node)
            if drawn and relative_name(region.kind, node.name) in wanted:
                return (
                    f"{node.name} draws random numbers, and would draw others when it runs again "
                    "alone: recompute whole blocks, or keep its result"
                )
    return None


def _first_nodes(graph: OpGraph, kind: str) -> Iterator[OpNode]:
    """The calls of the first block of a kind."""
    for block in graph.kinds.get(kind, ())[:1]:
        yield from (graph.by_name[name] for name in block.nodes)


def _of_block(graph: OpGraph, block: Block, region: RegionPlan) -> Again:
    first = graph.kinds[block.kind][0]
    wanted, needed = frozenset(region.recomputed_operators), needed_of_block(graph, block)
    calls = frozenset(
        name
        for name, model in zip(block.nodes, first.nodes, strict=True)
        if relative_name(block.kind, model) in wanted and name in needed
    )
    return Again(calls=calls, inputs=frozenset(region.reconverted_inputs))


def marked(function: Function, again: Again) -> Function:
    """The function of a block with the statements marked that run again.

    Args:
        function: whose first inputs are ``Block.inputs``.
    """
    made = {function.inputs[number].name: True for number in again.inputs}
    for statement in function.statements:
        if isinstance(statement, Convert):
            made[statement.output.name] = _is_made(statement.source, made)
        elif isinstance(statement, Call):
            for value, base in zip(statement.outputs, statement.views, strict=True):
                if base is None:
                    made[value.name] = statement.node in again.calls
                else:
                    made[value.name] = _is_made(base, made)
    readers = _readers(function)
    return replace(
        function,
        statements=tuple(
            replace(statement, again=True)
            if _runs_again(statement, again, made, readers)
            else statement
            for statement in function.statements
        ),
    )


def _readers(function: Function) -> Mapping[str, list[Statement]]:
    found: dict[str, list[Statement]] = {}
    for statement in function.statements:
        for value in operands(statement):
            if isinstance(value, Value):
                found.setdefault(value.name, []).append(statement)
    return found


def _runs_again(
    statement: Statement,
    again: Again,
    made: Mapping[str, bool],
    readers: Mapping[str, list[Statement]],
) -> bool:
    if isinstance(statement, Call):
        copies = statement.target in _MAY_COPY and _follows(statement, again, made)
        return copies or statement.node in again.calls
    if not isinstance(statement, Convert) or is_renaming(statement):
        return False
    name = statement.output.name
    calls = [reader for reader in readers.get(name, ()) if isinstance(reader, Call)]
    repeated = [_follows(call, again, made) for call in calls]
    if isinstance(statement.source, Held):
        return bool(repeated) and all(repeated)
    kept = any(name in call.keeps for call in calls)
    return made.get(statement.source.name, False) and (kept or any(repeated))


def _follows(call: Call, again: Again, made: Mapping[str, bool]) -> bool:
    """Whether a call runs again, or is a view of what is made again."""
    return call.node in again.calls or any(
        base is not None and _is_made(base, made) for base in call.views
    )


def _is_made(value: Operand, made: Mapping[str, bool]) -> bool:
    return isinstance(value, Value) and made.get(value.name, False)
