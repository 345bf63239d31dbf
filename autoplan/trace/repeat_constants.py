"""Gives the blocks that stand for others the constants that the traced block made.

A tensor that a forward makes out of numbers, as ``x[..., [-2]]`` and ``torch.tensor(2.0)`` do, is
lifted by the export to a placeholder of its own in every block. A stand-in made none, so its
placeholders are added here, and constants count among what a block reads. The witness of a group
decides: its constants must have the values of the first block's, and where both read one and the
same constant, so do the blocks between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

from autoplan.trace.regions import Region, find_regions
from autoplan.trace.repeat_errors import CannotFoldError
from autoplan.trace.repeat_memo import TracedBlock
from autoplan.trace.repeat_ops import BLOCK, MARK
from autoplan.trace.torch_private import fake_like


def give_constants(program: ExportedProgram, traced: Mapping[str, TracedBlock]) -> None:
    """Writes constants into the marks of traced blocks and into the nodes that stand for them.

    Args:
        program: a clean program whose blocks were memoised; changed in place.
        traced: the blocks traced between marks, by key.

    Raises:
        CannotFoldError: naming a group whose blocks have other constants, or that has no witness.
    """
    constants = _Constants(program)
    regions = find_regions(program.graph)
    read = {key: constants.read_by(region) for key, region in regions.items()}
    witnesses = {block.equals: key for key, block in traced.items() if block.equals}
    for node in list(program.graph.nodes):
        constants.pass_by(node)
        if node.target is BLOCK and read[node.args[0]]:
            key = node.args[0]
            if key not in witnesses:
                raise CannotFoldError(traced[key].group, "makes constants that no other confirms")
            given = constants.of_copy(node, read[key], read[witnesses[key]], traced[key])
            node.update_arg(3, [*node.args[3], *given])
        elif node.target is MARK and node.args[0].startswith("enter:"):
            key = node.args[0].removeprefix("enter:")
            node.update_arg(2, [*node.args[2], *read[key]])


class _Constants:
    """The placeholders of a program's constants, in order."""

    def __init__(self, program: ExportedProgram):
        self._program = program
        lifted = program.graph_signature.inputs_to_lifted_tensor_constants
        self._targets = {
            node: lifted[node.name] for node in program.graph.nodes if node.name in lifted
        }
        self._ordered = list(self._targets)
        self._last = -1

    def read_by(self, region: Region) -> list[fx.Node]:
        """Those that a region reads, other than as arguments."""
        read = {operand for node in region.nodes for operand in node.all_input_nodes}
        return [node for node in self._ordered if node in read and node not in region.reads]

    def pass_by(self, node: fx.Node) -> None:
        """Notes how far the execution, of which ``node`` is next, has read the constants."""
        read = (self._ordered.index(x) for x in node.all_input_nodes if x in self._targets)
        self._last = max(self._last, *read, -1)

    def of_copy(
        self, stub: fx.Node, first: list[fx.Node], last: list[fx.Node], block: TracedBlock
    ) -> list[fx.Node]:
        """The constants of a stand-in, given those of the traced block and of the witness."""
        if len(first) != len(last):
            raise CannotFoldError(block.group, "the last block has other constants")
        return [
            one if one is other else self._added(stub, one, other, block)
            for one, other in zip(first, last, strict=True)
        ]

    def _added(self, stub: fx.Node, one: fx.Node, other: fx.Node, block: TracedBlock) -> fx.Node:
        target, origin = self._targets[one], block.key.rpartition("#")[0]
        value: Any = self._program.constants[target]
        same = _equal(value, self._program.constants[self._targets[other]])
        if not same or not target.startswith(f"{origin}."):
            raise CannotFoldError(block.group, f"{target} differs in the last block")
        graph, known = self._program.graph, one.meta["val"]
        path = f"{stub.args[1]}{target.removeprefix(origin)}"
        with graph.inserting_after(self._ordered[self._last]):
            node = graph.placeholder("constant")
        node.meta["val"] = fake_like(known, known.fake_mode, known.dtype)
        self._last += 1
        self._ordered.insert(self._last, node)
        self._targets[node] = path
        self._program.constants[path] = value
        argument = TensorArgument(name=node.name)
        spec = InputSpec(InputKind.CONSTANT_TENSOR, argument, path)
        self._program.graph_signature.input_specs.append(spec)
        return node


def _equal(first: Any, second: Any) -> bool:
    """Whether both are real tensors of the same values."""
    return (
        all(type(x) is torch.Tensor and x.device.type != "meta" for x in (first, second))
        and first.dtype == second.dtype
        and torch.equal(first, second)
    )
