"""What training changes and a checkpoint must hold: weights, buffers, optimizer, random state.

Each tensor goes by a name that no plan influences (``model/<parameter>``,
``optimizer/<parameter>/<key>``) and as this rank's piece of it, a box of the global tensor. Options
and other plain values of the optimizer are JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autoplan.errors import CheckpointError
from autoplan.runtime.layout import Box, ParameterLayout
from autoplan.runtime.mesh import RankMesh
from autoplan.runtime.random import RandomState
from autoplan.runtime.weights import local


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """This rank's part of a tensor.

    Attributes:
        values: its local memory, of ``box.shape``.
        shape: of the global tensor.
        is_first_copy: whether this rank is the one to write it, of those that hold the same.
    """

    name: str
    values: Tensor
    box: Box
    shape: tuple[int, ...]
    is_first_copy: bool


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """Parameters and buffers of this rank by original name.

    ``layouts`` are those of the whole model, the stages of other ranks included.
    """

    parameters: Mapping[str, nn.Parameter]
    buffers: Mapping[str, Tensor]
    layouts: Mapping[str, ParameterLayout]
    mesh: RankMesh
    random: RandomState

    def shapes(self) -> dict[str, list[int]]:
        """Global shape of every weight and buffer, which tell one model from another."""
        return {name: list(layout.shape) for name, layout in self.layouts.items()}

    def model_pieces(self) -> Iterator[Piece]:
        for name, tensor in (*self.parameters.items(), *self.buffers.items()):
            yield self._piece(f"model/{name}", name, tensor)

    def optimizer_pieces(self, optimizer: Optimizer) -> Iterator[Piece]:
        """The tensors of the optimizer's state.

        Raises:
            CheckpointError: when a tensor has neither its parameter's shape nor a single element:
                how it would be split under another plan is unknown.
        """
        for name, parameter in self.parameters.items():
            for key, value in optimizer.state.get(parameter, {}).items():
                if not isinstance(value, Tensor):
                    continue
                full_name = f"optimizer/{name}/{key}"
                if value.shape == parameter.shape:
                    yield self._piece(full_name, name, value)
                elif value.numel() == 1:
                    yield self._scalar(full_name, name, value)
                else:
                    raise CheckpointError(
                        f"{type(optimizer).__name__} keeps {key!r} of shape {tuple(value.shape)} "
                        f"for {name!r}, of shape {tuple(parameter.shape)}, which cannot be split "
                        "under another plan: use an optimizer whose state has the weights' shapes"
                    )

    def optimizer_document(self, optimizer: Optimizer) -> dict[str, Any]:
        """All of this rank's optimizer but the tensors' values, as JSON.

        Raises:
            CheckpointError: when it steps parameters that are not this module's.
        """
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        groups = []
        for group in optimizer.param_groups:
            if any(id(parameter) not in names for parameter in group["params"]):
                raise CheckpointError(
                    "the optimizer steps parameters that are not this module's: build it from "
                    "pm.parameters()"
                )
            options = {key: _encode(value) for key, value in group.items() if key != "params"}
            groups.append(
                {"parameters": [names[id(p)] for p in group["params"]], "options": options}
            )
        state = {
            name: {key: _describe(value) for key, value in optimizer.state[parameter].items()}
            for name, parameter in self.parameters.items()
            if parameter in optimizer.state
        }
        return {"class": type(optimizer).__name__, "groups": groups, "state": state}

    def check_optimizer(self, optimizer: Optimizer, document: Mapping[str, Any]) -> None:
        """Checks that the optimizer can take what was saved.

        Args:
            document: of the whole model, in which this rank takes its own part.

        Raises:
            CheckpointError: when it is of another class or its groups hold other parameters.
        """
        own = self.optimizer_document(optimizer)
        if own["class"] != document["class"]:
            raise CheckpointError(
                f"the checkpoint holds the state of {document['class']}, not of {own['class']}"
            )
        if _members(own) != [group & set(self.parameters) for group in _members(document)]:
            raise CheckpointError(
                "the optimizer's parameter groups are not those of the checkpoint: build the same "
                "groups, in the same order, before load"
            )

    def prepare_optimizer(self, optimizer: Optimizer, document: Mapping[str, Any]) -> None:
        """Gives an optimizer that was checked the saved options, and state tensors to be filled."""
        for group, saved in zip(optimizer.param_groups, document["groups"], strict=True):
            for key, value in saved["options"].items():
                _set_option(group, key, value)
        of_parameter = {
            parameter: group for group in optimizer.param_groups for parameter in group["params"]
        }
        optimizer.state.clear()
        for name, parameter in self.parameters.items():
            if name not in document["state"]:
                continue
            saved = document["state"][name]
            optimizer.state[parameter] = {
                key: _allocate(entry, parameter, of_parameter[parameter])
                for key, entry in saved.items()
            }

    def _piece(self, full_name: str, name: str, tensor: Tensor) -> Piece:
        layout = self.layouts[name]
        box, values = layout.box(self.mesh), local(tensor)
        assert tuple(values.shape) == box.shape, (name, values.shape, box)
        return Piece(
            name=full_name,
            values=values,
            box=box,
            shape=layout.shape,
            is_first_copy=layout.is_first_copy(self.mesh),
        )

    def _scalar(self, full_name: str, name: str, value: Tensor) -> Piece:
        shape = tuple(value.shape)
        whole = ParameterLayout(shape=shape, pp_ranks=self.layouts[name].pp_ranks)
        return Piece(
            name=full_name,
            values=local(value),
            box=Box((0,) * len(shape), shape),
            shape=shape,
            is_first_copy=whole.is_first_copy(self.mesh),
        )


def _members(document: Mapping[str, Any]) -> list[set[str]]:
    return [set(group["parameters"]) for group in document["groups"]]


def _encode(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item()
    return list(value) if isinstance(value, tuple) else value


def _set_option(group: dict[str, Any], key: str, value: Any) -> None:
    if isinstance(group.get(key), Tensor):
        group[key].fill_(value)
    else:
        group[key] = tuple(value) if isinstance(value, list) else value


def _describe(value: Any) -> dict[str, Any]:
    if not isinstance(value, Tensor):
        return {"value": _encode(value)}
    return {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}


def _allocate(entry: Mapping[str, Any], parameter: nn.Parameter, group: Mapping[str, Any]) -> Any:
    if "value" in entry:
        return entry["value"]
    dtype = getattr(torch, entry["dtype"])
    if tuple(entry["shape"]) == tuple(parameter.shape):
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
    on_device = group.get("capturable") or group.get("fused")
    return torch.zeros(entry["shape"], dtype=dtype, device=parameter.device if on_device else "cpu")
