"""What the placeholders of an exported program stand for: inputs, parameters, buffers, constants.

Tied parameters are one tensor: the export uses one placeholder of the group and leaves the others
dead, and here the group goes by its first name in the model. Constants that the export lifted go
without the number that it counts them by.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from autoplan.errors import UnsupportedModelError
from autoplan.trace.graph import Arg
from autoplan.trace.inputs import Input
from autoplan.trace.program import MODEL
from autoplan.trace.torch_private import FakeTensor, storage_id

LARGEST_CONSTANT = 4096
_LIFTED = re.compile(r"lifted_tensor_\d+$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Placeholder:
    """A placeholder's node kind, its target (as in ``OpNode``) and, of a constant, its values."""

    kind: Literal["input", "parameter", "buffer", "constant"]
    target: str
    values: tuple[Arg, ...] = ()


def tied_names(model: nn.Module) -> tuple[tuple[str, ...], ...]:
    """Groups of parameter names that are one tensor, in the order of the model."""
    groups: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return tuple(tuple(names) for names in groups.values() if len(names) > 1)


def merge_tied(program: ExportedProgram, tied: tuple[tuple[str, ...], ...]) -> None:
    """Leaves one placeholder of each tied group, in place; it may carry any name of the group."""
    group_of = {name: group for group in tied for name in group}
    first: dict[tuple[str, ...], fx.Node] = {}
    targets = _targets(program)
    for node in list(program.graph.nodes):
        group = group_of.get(targets.get(node.name, ""))
        if group is None:
            continue
        if group in first:
            node.replace_all_uses_with(first[group])
            program.graph.erase_node(node)
        else:
            first[group] = node


def read_placeholders(
    program: ExportedProgram,
    inputs: tuple[Input, ...],
    tied: tuple[tuple[str, ...], ...],
    parameters: Mapping[int, str],
) -> dict[str, Placeholder]:
    """Placeholders by fx node name.

    Args:
        parameters: names of the given model's own parameters by the identity of their memory; a
            constant of the program that is one of them came past the modules.
    """
    first_name = {name: group[0] for group in tied for name in group}
    names = iter([given.name for given in inputs if given.is_tensor])
    found: dict[str, Placeholder] = {}
    for spec in program.graph_signature.input_specs:
        name, target = spec.arg.name, own_path(spec.target or "")
        if spec.kind is InputKind.USER_INPUT:
            found[name] = Placeholder(kind="input", target=next(names))
        elif spec.kind is InputKind.PARAMETER:
            found[name] = Placeholder(kind="parameter", target=first_name.get(target, target))
        elif spec.kind is InputKind.BUFFER:
            found[name] = Placeholder(kind="buffer", target=target)
        else:
            target = _LIFTED.sub("lifted_tensor", target)
            constant: torch.Tensor = program.constants[spec.target]  # pyright: ignore
            _refuse_trained(constant, parameters)
            values = _values(target, constant)
            found[name] = Placeholder(kind="constant", target=target, values=values)
    return found


def own_path(target: str) -> str:
    """A qualified name in the exported program as the model's own; '' for the model itself."""
    return "" if target == MODEL else target.removeprefix(f"{MODEL}.")


def _targets(program: ExportedProgram) -> dict[str, str]:
    return {
        spec.arg.name: own_path(spec.target)
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.PARAMETER and spec.target
    }


def _refuse_trained(constant: torch.Tensor, parameters: Mapping[int, str]) -> None:
    """Refuses constants whose gradients the program would lose."""
    if isinstance(constant, FakeTensor):
        return
    name = parameters.get(storage_id(constant))
    if name is None and not constant.requires_grad:
        return
    raise UnsupportedModelError(
        f"the forward reads {name or 'a tensor that is trained'} otherwise than from its module, "
        "as from a closure or a global, so it would not be trained; read it as an attribute"
    )


def _values(target: str, tensor: torch.Tensor) -> tuple[Arg, ...]:
    if isinstance(tensor, FakeTensor):
        raise UnsupportedModelError(
            "the forward takes a tensor out of what can be traced, as .data and "
            "torch.autograd.grad do, or reads parameters from a list; use detach(), or "
            "nn.ParameterList"
        )
    if tensor.numel() > LARGEST_CONSTANT or tensor.device.type == "meta":
        raise UnsupportedModelError(
            f"the forward uses the plain tensor {target} of {tensor.numel()} elements; "
            "register it as a buffer of its module"
        )
    return (_nested(tensor.tolist()),)


def _nested(value) -> Arg:
    return tuple(_nested(item) for item in value) if isinstance(value, list) else value
