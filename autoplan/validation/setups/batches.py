"""Microbatches of a row: as stated, or every one that its global batch allows."""

from __future__ import annotations

from dataclasses import replace

from autoplan.validation.published.rows import IncompleteRowError, MeasuredRow
from autoplan.validation.setups.frameworks import Usage
from autoplan.validation.setups.mesh import Mesh
from autoplan.validation.setups.pipelines import stated_chunks

LARGEST_MICROBATCH = 64  # sequences, where it is not stated
ROUNDING = 0.01
FILLING = 4  # microbatches a stage, in a pipeline whose batch is not stated


def batches_of(
    row: MeasuredRow,
    mesh: Mesh,
    usage: Usage,
    assumed: list[str],
) -> list[tuple[int, int]]:
    """Sequences of one microbatch, and microbatches of one rank in a step.

    Several where the row leaves them open.

    Raises:
        IncompleteRowError: batch sizes that contradict each other.
    """
    row = _with_counted_batch(row, mesh, assumed)
    if row.micro_batch is None:
        return _open_batches(row, mesh)
    microbatch = row.micro_batch
    microbatches = _microbatches(row, mesh, microbatch, assumed)
    stages = mesh.pp * (stated_chunks(row) or 1)
    if usage.cuts_rank_batch and mesh.pp > 1 and microbatches == 1 and microbatch % stages == 0:
        assumed.append(f"micro_batch: the rank's {microbatch} sequences in {stages} microbatches")
        return [(microbatch // stages, stages)]
    return [(microbatch, microbatches)]


def _with_counted_batch(row: MeasuredRow, mesh: Mesh, assumed: list[str]) -> MeasuredRow:
    """Rounded global batches give way to the product of what makes them up."""
    if row.global_batch_seqs is None or row.micro_batch is None or row.grad_accum is None:
        return row
    counted = row.micro_batch * row.grad_accum * mesh.dp
    if counted == row.global_batch_seqs or abs(counted / row.global_batch_seqs - 1) > ROUNDING:
        return row
    assumed.append(f"global batch: {counted}, where {row.global_batch_seqs} is stated")
    return replace(row, global_batch_seqs=counted)


def _rank_batch(row: MeasuredRow, mesh: Mesh) -> int | None:
    if row.global_batch_seqs is None:
        return None
    if row.global_batch_seqs % mesh.dp:
        raise IncompleteRowError(
            f"global batch {row.global_batch_seqs} does not split over dp {mesh.dp}"
        )
    return row.global_batch_seqs // mesh.dp


def _open_batches(row: MeasuredRow, mesh: Mesh) -> list[tuple[int, int]]:
    """Every division of the rank's batch, or the one that accumulation tells."""
    rank_batch = _rank_batch(row, mesh)
    if rank_batch is None:
        raise IncompleteRowError("neither micro_batch nor global_batch_seqs is stated")
    if row.grad_accum is not None and rank_batch % row.grad_accum == 0:
        return [(rank_batch // row.grad_accum, row.grad_accum)]
    return [
        (size, rank_batch // size)
        for size in range(1, min(rank_batch, LARGEST_MICROBATCH) + 1)
        if rank_batch % size == 0
    ]


def _microbatches(row: MeasuredRow, mesh: Mesh, microbatch: int, assumed: list[str]) -> int:
    rank_batch = _rank_batch(row, mesh)
    if rank_batch is None:
        if row.grad_accum is not None:
            return row.grad_accum
        if mesh.pp == 1:
            return 1
        assumed.append(f"global batch: {FILLING} microbatches a stage")
        return FILLING * mesh.pp
    whole = -(-rank_batch // microbatch)
    if row.grad_accum is not None and row.grad_accum != whole:
        raise IncompleteRowError(
            f"micro_batch {microbatch} x grad_accum {row.grad_accum} x dp {mesh.dp} is not the"
            f" global batch {row.global_batch_seqs}"
        )
    if rank_batch % microbatch:
        assumed.append("the last microbatch: as large as the others")
    return whole
