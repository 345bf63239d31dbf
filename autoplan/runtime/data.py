"""Feeds the batch: names the inputs, checks their sizes, cuts microbatches.

The global batch fixes the mathematics, so a rank's share of it must have exactly the planned
number of rows: a last batch of another size would train with other weights per sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from autoplan.codegen.emitted import BatchInput
from autoplan.errors import PlanError
from autoplan.runtime.agreement import check_same_batch
from autoplan.runtime.mesh import RankMesh
from autoplan.trace.inputs import TARGETS

Batch = Mapping[str, Tensor] | Sequence[Tensor]


class BatchReader:
    """Turns what the user feeds into the arguments of each microbatch.

    Args:
        inputs: arguments of the emitted module, with global shapes at the plan's global batch.
        positional: names of the model's arguments in the order of its ``forward``.
        samples: global batch.
    """

    def __init__(
        self,
        inputs: Sequence[BatchInput],
        *,
        positional: Sequence[str],
        samples: int,
        num_microbatches: int,
        mesh: RankMesh,
    ) -> None:
        self.inputs = tuple(inputs)
        self.positional = tuple(positional)
        self.samples = samples
        self.num_microbatches = num_microbatches
        self._mesh = mesh

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """The inputs in the emitted order, from the arguments of a call.

        Positions are those of the model's ``forward``; the targets of a loss function come last.

        Raises:
            PlanError: when other inputs are given than the model was planned for.
        """
        return self._in_order(self._by_name(args, kwargs))

    def read(self, batch: Batch) -> tuple[Tensor, ...]:
        """The inputs of ``train_step``'s batch: a mapping by name, or a sequence by position."""
        return self._in_order(self._of_batch(batch))

    def missing(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
        """Names of the inputs of the loss that a call does not give, or gives as ``None``."""
        given = self._by_name(args, kwargs)
        return [entry.target for entry in self.inputs if given.get(entry.target) is None]

    def microbatches(self, inputs: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """The arguments of every microbatch, from this rank's share of the global batch.

        Raises:
            PlanError: when an input has another shape than this rank's share of the global batch,
                or values of another kind (floating-point, integer, bool), or tensor-parallel peers
                feed other samples.
        """
        placed = [
            self._placed(entry, value) for entry, value in zip(self.inputs, inputs, strict=True)
        ]
        check_same_batch(placed, self._mesh)
        return list(zip(*map(self._split, self.inputs, placed), strict=True))

    def shard(self, batch: Batch) -> Any:
        """This data-parallel rank's rows of a global batch, in the form that was given."""
        given = self._of_batch(batch)
        own = {
            entry.target: self._own_rows(entry, value)
            for entry, value in zip(self.inputs, self._in_order(given), strict=True)
        }
        if isinstance(batch, Mapping):
            return own
        rows = tuple(own[name] for name in given)
        return rows[0] if isinstance(batch, Tensor) else rows

    def _of_batch(self, batch: Batch) -> dict[str, Any]:
        if isinstance(batch, Mapping):
            return self._by_name((), batch)
        return self._by_name((batch,) if isinstance(batch, Tensor) else tuple(batch), {})

    def _by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """What is given, in the order in which it is given."""
        given = dict(zip(self._names(len(args), kwargs), args, strict=False)) | dict(kwargs)
        if len(given) < len(args) + len(kwargs):
            raise PlanError(
                f"{len(args)} inputs by position and {sorted(kwargs)} were given: "
                f"{self._expected()}"
            )
        return given

    def _names(self, count: int, kwargs: Mapping[str, Any]) -> list[str]:
        """Names of ``count`` inputs that are given by position, beside ``kwargs``."""
        apart = {entry.target for entry in self.inputs} - {*self.positional, *kwargs}
        if TARGETS not in apart:
            return list(self.positional[:count])
        return [*self.positional[: max(count - 1, 0)], TARGETS]

    def _in_order(self, given: Mapping[str, Any]) -> tuple[Tensor, ...]:
        names = [entry.target for entry in self.inputs]
        if missing := [name for name in names if name not in given]:
            raise PlanError(f"{', '.join(map(repr, missing))} is missing: {self._expected()}")
        if extra := sorted(set(given) - set(names)):
            raise PlanError(f"{', '.join(map(repr, extra))} is not an input: {self._expected()}")
        for name in names:
            if not isinstance(given[name], Tensor):
                raise PlanError(f"input {name!r} is a {type(given[name]).__name__}: give a tensor")
        return tuple(given[name] for name in names)

    def _placed(self, entry: BatchInput, value: Tensor) -> Tensor:
        self._check(entry, value, ranks=self._mesh.dp)
        if value.is_floating_point():
            value = value.to(getattr(torch, entry.meta.dtype))
        return value.to(self._mesh.device, non_blocking=True)

    def _split(self, entry: BatchInput, value: Tensor) -> tuple[Tensor, ...]:
        if not entry.meta.batch_dims:
            return (value,) * self.num_microbatches
        return value.chunk(self.num_microbatches, entry.meta.batch_dims[0])

    def _own_rows(self, entry: BatchInput, value: Tensor) -> Tensor:
        self._check(entry, value, ranks=1)
        if not entry.meta.batch_dims:
            return value
        return value.chunk(self._mesh.dp, entry.meta.batch_dims[0])[self._mesh.dp_rank]

    def _check(self, entry: BatchInput, value: Tensor, *, ranks: int) -> None:
        expected = tuple(
            size // ranks if dim in entry.meta.batch_dims else size
            for dim, size in enumerate(entry.meta.shape)
        )
        if tuple(value.shape) != expected:
            share = f"one of {ranks} data-parallel ranks" if ranks > 1 else "the whole"
            raise PlanError(
                f"input {entry.target!r} has shape {tuple(value.shape)} but {share} of global "
                f"batch {self.samples} feeds {expected}: drop a last batch of another size "
                "(DataLoader(drop_last=True)), or plan for this one"
            )
        check_kind(entry.target, value, entry.meta.dtype)

    def _expected(self) -> str:
        names = ", ".join(repr(entry.target) for entry in self.inputs)
        return f"feed the inputs that the model was planned for, {names}"


def check_kind(name: str, value: Tensor, dtype: str) -> None:
    """Values of an input are of the kind that was planned for.

    Raises:
        PlanError: when truth values, numbers of things and measures are confused.
    """
    given, planned = _kind(value.dtype), _kind(getattr(torch, dtype))
    if given != planned:
        raise PlanError(
            f"input {name!r} holds {given} values but the model was planned for {planned} ones: "
            f"feed {dtype}"
        )


def _kind(dtype: torch.dtype) -> str:
    """Values of one kind mean the same in each of its dtypes."""
    if dtype.is_floating_point:
        return "floating-point"
    return "bool" if dtype == torch.bool else "integer"
