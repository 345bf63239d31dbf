"""Example inputs: their names, which dim is the batch, and fake stand-ins at any batch.

Tensors of a dict keep their keys; positional ones get the parameter names of ``forward``. Unless
``batch_dims`` says otherwise, dim 0 of every tensor that has dims is the batch. With a ``loss_fn``
the targets are the last element of a tuple, or the key ``targets`` (else ``labels``) of a dict.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from autoplan.errors import UnsupportedModelError
from autoplan.trace.torch_private import FakeTensorMode

ExampleInputs = tuple[Any, ...] | list[Any] | Mapping[str, Any]
BatchDims = Mapping[str, int | None]
CONSTANTS = (bool, int, float, str, type(None))
Role = Literal["positional", "keyword", "targets"]
TARGETS = "targets"


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """One argument of the model, or the targets of the loss.

    Attributes:
        name: keyword, or name of the positional parameter.
        value: the example tensor, or a plain constant.
        role: how it is passed.
        batch_dim: dim that follows the batch; None for constants and tensors without a batch.
    """

    name: str
    value: Any
    role: Role
    batch_dim: int | None

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.value, torch.Tensor)

    def fake(self, mode: FakeTensorMode, batch: int, dtype: torch.dtype | None) -> torch.Tensor:
        """A contiguous fake CPU tensor like the example, at another batch."""
        shape = list(self.value.shape)
        if self.batch_dim is not None:
            shape[self.batch_dim] = batch
        kept = self.value.dtype
        with mode:
            return torch.empty(shape, dtype=dtype if dtype and kept.is_floating_point else kept)


def read_inputs(
    model: nn.Module,
    example_inputs: ExampleInputs,
    *,
    with_targets: bool,
    batch_dims: BatchDims | None,
) -> tuple[Input, ...]:
    """Names and checks the example inputs.

    Raises:
        UnsupportedModelError: inputs that are neither tensors nor constants, that disagree on the
            batch, or that carry none.
    """
    dims = dict(batch_dims or {})
    inputs = tuple(
        Input(name=name, value=value, role=role, batch_dim=_batch_dim(name, value, dims))
        for name, value, role in named_inputs(model, example_inputs, with_targets=with_targets)
    )
    unknown = sorted(dims.keys() - {given.name for given in inputs})
    if unknown:
        raise UnsupportedModelError(
            f"batch_dims names {unknown[0]!r}, which is not an input; "
            f"the inputs are {', '.join(given.name for given in inputs)}"
        )
    _check_batch(inputs)
    return inputs


def named_inputs(
    model: nn.Module, example_inputs: ExampleInputs, *, with_targets: bool
) -> Iterator[tuple[str, Any, Role]]:
    """Name, value and role of every example input, in the order given.

    Raises:
        UnsupportedModelError: more of them than the model takes, names that it does not take, or
            no targets where a loss has them.
    """
    if isinstance(example_inputs, Mapping):
        keys = [key for key in (TARGETS, "labels") if key in example_inputs]
        if with_targets and not keys:
            raise UnsupportedModelError(
                'with a loss_fn the example inputs need the key "targets" (or "labels")'
            )
        targets = keys[0] if with_targets else None
        _check_names(model, [name for name in example_inputs if name != targets])
        for name, value in example_inputs.items():
            yield name, value, "targets" if name == targets else "keyword"
        return
    if not isinstance(example_inputs, (tuple, list)):
        raise UnsupportedModelError(
            f"example_inputs is a {type(example_inputs).__name__}; "
            "give a tuple of arguments or a dict of keyword arguments"
        )
    values = list(example_inputs)
    if with_targets and len(values) < 2:
        raise UnsupportedModelError(
            "with a loss_fn the last example input is the targets; "
            "give the model's inputs before it"
        )
    targets = values.pop() if with_targets else None
    names = positional_names(model, len(values))
    if len(names) < len(values):
        raise UnsupportedModelError(
            f"{len(values)} example inputs given, but {type(model).__name__}.forward takes "
            f"{len(names)}"
        )
    for name, value in zip(names, values, strict=True):
        yield name, value, "positional"
    if with_targets:
        yield TARGETS, targets, "targets"


def positional_names(model: nn.Module, count: int) -> Sequence[str]:
    """Names of the first ``count`` arguments of ``forward`` by position, fewer if it has fewer."""
    names: list[str] = []
    for parameter in inspect.signature(model.forward).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_{index}" for index in range(count - len(names))]
        elif parameter.kind in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        ):
            names.append(parameter.name)
    return names[:count]


def _check_names(model: nn.Module, names: Sequence[str]) -> None:
    parameters = inspect.signature(model.forward).parameters
    if any(given.kind is inspect.Parameter.VAR_KEYWORD for given in parameters.values()):
        return
    unknown = [name for name in names if name not in parameters]
    if unknown:
        forward = f"{type(model).__name__}.forward"
        raise UnsupportedModelError(
            f"the example inputs name {unknown[0]!r}, which {forward} does not take; "
            f"it takes {', '.join(parameters)}, each a tensor, number, string or None"
        )


def check_constant(name: str, value: Any) -> None:
    """Refuses what an input that is no tensor cannot be.

    Raises:
        UnsupportedModelError: a value that is not one of ``CONSTANTS``.
    """
    if not isinstance(value, CONSTANTS):
        raise UnsupportedModelError(
            f"input {name!r} is a {type(value).__name__}; pass tensors, numbers, strings or None, "
            f"each as an argument of its own{_forward_of(value)}"
        )


def _forward_of(value: Any) -> str:
    """How a forward that takes a dict could take what is in it."""
    if not isinstance(value, Mapping) or not all(str(key).isidentifier() for key in value):
        return ""
    return f": def forward(self, {', '.join(map(str, value))})"


def _batch_dim(name: str, value: Any, dims: dict[str, int | None]) -> int | None:
    if not isinstance(value, torch.Tensor):
        check_constant(name, value)
        return None
    if name not in dims:
        return 0 if value.dim() else None
    dim = dims[name]
    if dim is None:
        return None
    if not -value.dim() <= dim < value.dim():
        raise UnsupportedModelError(
            f"batch_dims puts the batch of {name!r} on dim {dim}, but its shape is "
            f"{tuple(value.shape)}"
        )
    return dim % value.dim()


def _check_batch(inputs: tuple[Input, ...]) -> None:
    sizes = {
        given.name: given.value.shape[given.batch_dim]
        for given in inputs
        if given.batch_dim is not None
    }
    if not sizes:
        raise UnsupportedModelError("no example input is a tensor that carries the batch")
    (first, size), *others = sizes.items()
    for name, other in others:
        if other != size:
            raise UnsupportedModelError(
                f"input {first!r} holds {size} samples and {name!r} holds {other}; "
                f"say which dim is the batch, e.g. batch_dims={{{name!r}: None}}"
            )
