"""The traced blocks in an exported graph: which calls they hold, and whether they may be copied.

A block may stand for others only if it reads nothing but its arguments and its own tensors, if
nothing but its results is read outside, and if the witness of its group came out the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from autoplan.trace.repeat_errors import CannotFoldError
from autoplan.trace.repeat_memo import TracedBlock
from autoplan.trace.repeat_ops import BLOCK, MARK
from autoplan.trace.torch_private import tree_leaves


@dataclass(slots=True)
class Region:
    """One traced block: what it reads, its nodes in order, and its results."""

    reads: list[fx.Node]
    nodes: list[fx.Node] = field(default_factory=list)
    results: list[fx.Node] = field(default_factory=list)


def block_reads(stub: fx.Node) -> list[fx.Node]:
    """What a block node reads, corresponding to its region's ``reads``."""
    ins: Any = stub.args[2]
    stored: Any = stub.args[3]
    return [*ins, *stored]


def find_regions(graph: fx.Graph) -> dict[str, Region]:
    """The regions between marks by key; they are never nested."""
    regions: dict[str, Region] = {}
    current: Region | None = None
    for node in graph.nodes:
        if node.target is MARK:
            tag, first, second = node.args
            what, _, key = tag.partition(":")
            if what == "enter":
                current = regions[key] = Region([*first, *second])
            elif current is not None:
                current.results, current = list(first), None
        elif current is not None:
            current.nodes.append(node)
    return regions


def check_regions(graph: fx.Graph, traced: Mapping[str, TracedBlock]) -> None:
    """Checks the regions of a clean graph that stand for others.

    Raises:
        CannotFoldError: naming the group whose blocks must be traced in full.
    """
    regions = find_regions(graph)
    copied = {node.args[0] for node in graph.nodes if node.target is BLOCK}
    for key in copied:
        _check_closed(regions[key], traced[key].group)
    for block in traced.values():
        if block.equals is not None and block.equals in copied:
            _check_equal(regions[block.equals], regions[block.key], block.group)


def _check_closed(region: Region, group: str) -> None:
    inside = {*region.nodes}
    readable = inside.union(region.reads)
    results = set(region.results)
    for node in region.nodes:
        for operand in node.all_input_nodes:
            if operand not in readable:
                raise CannotFoldError(group, f"reads {operand} from outside")
        if node not in results and any(user not in inside for user in node.users):
            raise CannotFoldError(group, f"{node} is read outside without being returned")


def _check_equal(region: Region, witness: Region, group: str) -> None:
    mapped: dict[Any, Any] = {}
    for first, second in zip(region.reads, witness.reads, strict=True):
        if mapped.setdefault(first, second) is not second:
            raise CannotFoldError(group, "the last block reads other tensors")
    if len(region.nodes) != len(witness.nodes):
        raise CannotFoldError(group, "the last block has other operators")
    for first, second in zip(region.nodes, witness.nodes, strict=True):
        args = fx.map_arg((first.args, first.kwargs), lambda operand: mapped.get(operand, operand))
        if (
            first.target != second.target
            or args != (second.args, second.kwargs)
            or _metadata(first) != _metadata(second)
        ):
            raise CannotFoldError(group, f"{first.name} differs in the last block")
        mapped[first] = second
    if [mapped.get(node, node) for node in region.results] != witness.results:
        raise CannotFoldError(group, "the last block returns other tensors")


def _metadata(node: fx.Node) -> list[tuple]:
    return [
        (tuple(value.shape), value.stride(), value.dtype)
        if isinstance(value, torch.Tensor)
        else (repr(value),)
        for value in tree_leaves(node.meta.get("val"))
    ]
