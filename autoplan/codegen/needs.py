"""What must run for a value: the calls outside blocks and the blocks that it depends on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from autoplan.trace.graph import Block, OpGraph, OpNode, Ref


def needed(graph: OpGraph, targets: Iterable[Ref], known: Set[Ref]) -> set[str]:
    """Names of the nodes on which the targets depend, whole blocks at a time.

    Args:
        known: values that are given, so that what makes them need not run.
    """
    found: set[str] = set()
    open_refs = [ref for ref in targets if ref not in known]
    while open_refs:
        name = open_refs.pop().node
        if name in found:
            continue
        block = graph.block_of.get(name)
        found.update(block.nodes if block else (name,))
        open_refs += [ref for ref in reads(graph, name) if ref not in known]
    return found


def reads(graph: OpGraph, name: str) -> tuple[Ref, ...]:
    """What a call outside blocks, or the whole block of a call inside, reads from outside.

    Parameters that lie below the path of the block that reads them are not listed.
    """
    block = graph.block_of.get(name)
    if block is None:
        return graph.by_name[name].operands
    return (*block.inputs, *(Ref(name) for name in outside_parameters(graph, block)))


def outside_parameters(graph: OpGraph, block: Block) -> tuple[str, ...]:
    """Parameters and buffers that a block reads but that are not below its path."""
    nodes = graph.by_name
    return tuple(
        name
        for name in block.parameters
        if nodes[name].kind != "constant" and not nodes[name].target.startswith(f"{block.path}.")
    )


def in_order(graph: OpGraph, names: Set[str]) -> Iterator[OpNode | Block]:
    """The calls and blocks among ``names``, each after all that it reads, else as in the graph."""
    position = {node.name: index for index, node in enumerate(graph.nodes)}
    done: set[str] = set()

    def visit(name: str) -> Iterator[OpNode | Block]:
        if name in done or name not in names or graph.by_name[name].kind != "call":
            return
        block = graph.block_of.get(name)
        group = block.nodes if block else (name,)
        done.update(group)
        before = {ref.node for ref in reads(graph, name)}
        for operand in sorted(before, key=position.__getitem__):
            yield from visit(operand)
        yield block or graph.by_name[name]

    for node in graph.nodes:
        yield from visit(node.name)
