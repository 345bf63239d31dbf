"""Ranks along each axis; what a row leaves open follows from the number of its devices."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.validation.published.rows import IncompleteRowError, MeasuredRow
from hardware_profiles.spec import ClusterSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Mesh:
    """Ranks; ``tp * pp * dp * cp = gpus`` and ``ep`` divides ``dp * cp``."""

    gpus: int
    gpus_per_node: int
    tp: int
    pp: int
    dp: int
    cp: int
    ep: int


def mesh_of(row: MeasuredRow, cluster: ClusterSpec, zero: int, assumed: list[str]) -> Mesh:
    """The mesh of a row.

    Raises:
        IncompleteRowError: degrees that are not stated and do not follow, or contradict the number
            of devices.
    """
    gpus = _gpus(row)
    tp, pp, cp = row.tp or 1, row.pp or 1, row.cp or 1
    open_axes = [axis for axis in ("tp", "pp") if getattr(row, axis) is None]
    if open_axes and gpus > 1:
        if row.dp is None and zero < 3:
            raise IncompleteRowError(f"{' and '.join(open_axes)} not stated for {gpus} GPUs")
        assumed += [f"{axis}: 1" for axis in open_axes]
    if gpus % (tp * pp * cp):
        raise IncompleteRowError(f"tp {tp} x pp {pp} x cp {cp} does not divide {gpus} GPUs")
    ep = row.ep or 1
    dp = row.dp or gpus // (tp * pp * cp)
    if ep > 1 and tp * pp * cp * dp * ep == gpus:
        dp *= ep
        assumed.append(f"dp: {dp}, ep within it")
    if tp * pp * cp * dp != gpus:
        raise IncompleteRowError(
            f"tp {tp} x pp {pp} x cp {cp} x dp {dp} is {tp * pp * cp * dp}, not {gpus} GPUs"
        )
    if (dp * cp) % ep:
        raise IncompleteRowError(f"ep {ep} does not divide dp {dp} x cp {cp}")
    return Mesh(
        gpus=gpus,
        gpus_per_node=_gpus_per_node(row, cluster, gpus),
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=ep,
    )


def _gpus(row: MeasuredRow) -> int:
    if row.n_gpus is not None:
        return row.n_gpus
    if row.dp is not None and row.tp is not None and row.pp is not None:
        return row.dp * row.tp * row.pp * (row.cp or 1)
    raise IncompleteRowError("n_gpus is not stated")


def _gpus_per_node(row: MeasuredRow, cluster: ClusterSpec, gpus: int) -> int:
    stated = row.gpus_per_node or cluster.gpus_per_node
    if stated > cluster.gpus_per_node:
        if stated > (cluster.scaleup_gpus or 0):
            raise IncompleteRowError(
                f"{stated} GPUs a node: {cluster.name} has {cluster.gpus_per_node}"
            )
        stated = cluster.gpus_per_node
    return min(stated, gpus)
