"""Which blocks can be data parallel units of their own.

A unit's parameters are whole only while its own forward (or backward) runs. A block can be one
when nothing outside it reads a parameter that lies below its path.
"""

from __future__ import annotations

from autoplan.trace.graph import OpGraph, Ref


def unit_paths(graph: OpGraph) -> tuple[str, ...]:
    """Paths of the blocks that can be units, in the order of execution."""
    shared: set[str] = set()
    for node in graph.of_kind("parameter"):
        owner = next((b.path for b in graph.blocks if node.target.startswith(f"{b.path}.")), None)
        for reader in graph.readers.get(Ref(node.name), ()):
            block = graph.block_of.get(reader)
            if owner is not None and (block is None or block.path != owner):
                shared.add(owner)
    return tuple(block.path for block in graph.blocks if block.path not in shared)
