"""What an evaluation is called with: named, placed on the device, the same on peers of ``tp``.

Only what the loss is made of was planned for; a model may take other arguments without labels. An
input of the loss that is ``None`` is as if left out, which is how models are told to return
outputs.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autoplan.errors import PlanError
from autoplan.runtime.agreement import check_same_batch
from autoplan.runtime.data import check_kind
from autoplan.runtime.mesh import RankMesh
from autoplan.trace.graph import OpGraph
from autoplan.trace.inputs import check_constant
from autoplan.trace.outputs import ModelForward


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationInputs:
    """Arguments of one call, by name.

    Attributes:
        values: tensors on this rank's device, and plain values.
        batch_dims: of the tensors; None where samples share one.
    """

    values: Mapping[str, Any]
    batch_dims: Mapping[str, int | None]

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.values.items() if isinstance(value, Tensor)}

    @property
    def kind(self) -> Any:
        """What one program serves: tensors of any batch, and one set of plain values."""
        return tuple(
            (name, _kind(value, self.batch_dims.get(name))) for name, value in self.values.items()
        )


class EvaluationReader:
    """Reads the arguments of calls.

    Args:
        graph: that the plan is for.
    """

    def __init__(self, forward: ModelForward, graph: OpGraph, mesh: RankMesh) -> None:
        self._forward = forward
        self._mesh = mesh
        self._metas = {node.target: node.outputs[0] for node in graph.of_kind("input")}

    def read(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> EvaluationInputs:
        """The arguments of a call; all ranks must ask at once.

        Raises:
            PlanError: arguments that the model has not, of another kind than it was planned for,
                or other ones on ranks that must be fed the same.
            UnsupportedModelError: arguments that are neither tensors nor constants.
        """
        values = {
            name: self._placed(name, value) if isinstance(value, Tensor) else value
            for name, value in self._named(args, kwargs).items()
        }
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        kinds = repr([(name, _kind(value, None)) for name, value in values.items()])
        told = torch.tensor(zlib.crc32(kinds.encode()), device=self._mesh.device)
        check_same_batch([told], self._mesh)  # first: ranks must agree how many tensors there are
        check_same_batch(list(tensors.values()), self._mesh)
        dims = {name: self._batch_dim(name, value) for name, value in tensors.items()}
        return EvaluationInputs(values=values, batch_dims=dims)

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        names = self._forward.positional(len(args))
        if args and args[-1] is None and len(names) == len(args) - 1:
            args = args[:-1]  # targets of a loss function, which come last
        if len(names) < len(args) or not kwargs.keys().isdisjoint(names):
            raise PlanError(
                f"{len(args)} inputs by position and {sorted(kwargs)} were given, but the model "
                f"takes {', '.join(self._metas)}"
            )
        for name, value in kwargs.items():
            if name not in self._metas and not self._forward.takes(name, value):
                known = ", ".join(map(repr, self._metas))
                raise PlanError(f"{name!r} is no argument of the model: it was planned for {known}")
        given = dict(zip(names, args, strict=True)) | dict(kwargs)
        for name, value in given.items():
            if not isinstance(value, Tensor):
                check_constant(name, value)
        return {name: value for name, value in given.items() if not self._left_out(name, value)}

    def _left_out(self, name: str, value: Any) -> bool:
        return value is None and name in self._metas and self._forward.defaults_to_none(name)

    def _placed(self, name: str, value: Tensor) -> Tensor:
        if name in self._metas:
            dtype = self._metas[name].dtype
            check_kind(name, value, dtype)
            if value.is_floating_point():
                value = value.to(getattr(torch, dtype))
        return value.to(self._mesh.device, non_blocking=True)

    def _batch_dim(self, name: str, value: Tensor) -> int | None:
        """That of the plan; the first of what it was not planned for."""
        if name in self._metas:
            return next(iter(self._metas[name].batch_dims), None)
        return 0 if value.dim() else None


def _kind(value: Any, batch_dim: int | None) -> Any:
    """What a program must have been made for.

    Values are told by their text: 1, 1.0 and True are equal, and a model does otherwise by each.
    """
    if not isinstance(value, Tensor):
        return type(value), repr(value)
    return value.dtype, tuple(size for dim, size in enumerate(value.shape) if dim != batch_dim)
