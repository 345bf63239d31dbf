"""The pipeline of a row: model chunks of a rank, and the order of their passes."""

from __future__ import annotations

import re

from autoplan.validation.published.rows import IncompleteRowError, MeasuredRow
from autoplan.validation.setups.frameworks import Usage
from autoplan.validation.setups.mesh import Mesh
from cost_models.schedules import ScheduleName


def stated_chunks(row: MeasuredRow) -> int | None:
    """Model chunks of a rank as the row tells; two where it says no more than "interleaved"."""
    if row.vpp is None and "interleaved" in f"{row.framework} {row.notes}".lower():
        return 2
    return row.vpp


def virtual_stages_of(
    row: MeasuredRow,
    layers: int,
    microbatches: int,
    mesh: Mesh,
    usage: Usage,
    assumed: list[str],
) -> list[int]:
    """Model chunks of a rank; several where the row leaves them open.

    Interleaving needs as many microbatches as stages, or a multiple.

    Raises:
        IncompleteRowError: more chunks than layers.
    """
    if mesh.pp == 1:
        return [1]
    stated = stated_chunks(row)
    if stated is not None:
        if stated * mesh.pp > layers:
            raise IncompleteRowError(f"{layers} layers on {mesh.pp} x {stated} chunks")
        if row.vpp is None:
            assumed.append(f"vpp: {stated}, the least that interleaves")
        return [stated]
    if not usage.interleaves or microbatches % mesh.pp:
        return [1]
    most = layers // mesh.pp
    counts = [count for count in range(1, most + 1) if _even(layers, mesh.pp * count)]
    return counts or [1]


def _even(layers: int, chunks: int) -> bool:
    return layers % chunks == 0 or ends_fill(layers, chunks)


def ends_fill(layers: int, chunks: int) -> bool:
    """Whether layers divide into chunks only with the two ends as a layer each."""
    return chunks > 1 and layers % chunks > 0 and (layers + 2) % chunks == 0


def schedule_of(row: MeasuredRow, virtual_stages: int) -> ScheduleName:
    """The order of a rank's passes, as far as the row's words tell."""
    words = f"{row.framework} {row.notes}".lower()
    if virtual_stages > 1:
        return "interleaved_1f1b"
    if re.search(r"zero.?bubble|\bzb", words):
        return "zero_bubble"
    return "gpipe" if "gpipe" in words else "1f1b"
