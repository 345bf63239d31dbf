"""Samples of an evaluation, cut into microbatches and put together again.

Any number of samples goes: the last microbatches are filled up with zeros, and what is made of
these is cut off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.codegen.emitted import Output
from autoplan.errors import PlanError
from autoplan.runtime.mesh import RankMesh


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """This rank's samples in an evaluation.

    Attributes:
        count: how many there are.
        microbatch: samples of a microbatch.
        pieces: microbatches that every data-parallel rank runs.
    """

    count: int
    microbatch: int
    pieces: int

    def cut(self, value: Tensor, dim: int | None) -> Sequence[Tensor]:
        """An input for every microbatch; ``dim`` follows the batch."""
        if dim is None:
            return [value] * self.pieces
        shape = list(value.shape)
        shape[dim] = self.pieces * self.microbatch - self.count
        filled = torch.cat([value, value.new_zeros(shape)], dim) if shape[dim] else value
        return filled.split(self.microbatch, dim)

    def place(self, output: Output, device: torch.device) -> Tensor:
        """Memory for an output of all these samples."""
        shape = list(output.shape)
        if output.batch_dim is not None:
            shape[output.batch_dim] = shape[output.batch_dim] // self.microbatch * self.count
        return torch.empty(shape, dtype=getattr(torch, output.dtype), device=device)

    def join(self, parts: Sequence[Tensor], output: Output, whole: Tensor) -> None:
        """Fills ``whole`` with what was made of each microbatch."""
        dim = output.batch_dim
        if dim is None:
            whole.copy_(parts[0])
            return
        target, along, start = _by_part(whole, output), dim + 1, 0
        for part in parts:
            source = _by_part(part, output)
            size = min(source.shape[along], target.shape[along] - start)
            target.narrow(along, start, size).copy_(source.narrow(along, 0, size))
            start += size


def _by_part(value: Tensor, output: Output) -> Tensor:
    """The dim of the samples as two: its parts, and what lies in each of them."""
    assert output.batch_dim is not None
    size = value.shape[output.batch_dim] // output.parts
    return value.unflatten(output.batch_dim, (output.parts, size))


def rows_of(
    tensors: Mapping[str, Tensor],
    dims: Mapping[str, int | None],
    microbatch: int,
    mesh: RankMesh,
) -> Rows:
    """The samples in these inputs; every data-parallel rank must ask at once.

    Raises:
        PlanError: when the inputs have none, or different numbers of them.
    """
    along = {name: dim for name, dim in dims.items() if dim is not None}
    for name, dim in along.items():
        if tensors[name].dim() <= dim:
            raise PlanError(
                f"input {name!r} has shape {tuple(tensors[name].shape)}, but samples lie along its "
                f"dim {dim}: feed a batch"
            )
    sizes = {name: tensors[name].shape[dim] for name, dim in along.items()}
    if len(set(sizes.values())) != 1:
        found = ", ".join(f"{name!r} has {size}" for name, size in sizes.items())
        raise PlanError(
            "every input of an evaluation must hold the same number of samples, at the batch's "
            f"dim: {found or 'no input has any'}"
        )
    count = next(iter(sizes.values()))
    pieces = torch.tensor(max(1, -(-count // microbatch)), device=mesh.device)
    if mesh.dp > 1:
        dist.all_reduce(pieces, dist.ReduceOp.MAX, group=mesh.group("dp"))
    return Rows(count=count, microbatch=microbatch, pieces=int(pieces))
