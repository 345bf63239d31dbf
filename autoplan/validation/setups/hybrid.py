"""Replicas under hybrid sharding, from the words that rows use for it.

Weights, gradients and optimizer state are shared by the ranks of one replica: those of a node
(FSDP's ``HYBRID_SHARD`` by default), unless the row says how many. Two numbers are replicas times
shards, in the order of the device mesh that PyTorch takes.
"""

from __future__ import annotations

import re

from autoplan.validation.published.rows import IncompleteRowError, MeasuredRow
from autoplan.validation.setups.mesh import Mesh

_HYBRID = re.compile(
    r"(?<!no )(?<!not )(?<!without )(?<![a-z])"
    r"(hsdp|hybrid[ _-]?shard\w*|shard\w* (with)?in (a |one |each |the )?node)"
)
_GRID = re.compile(r"(?:hsdp|hybrid[ _-]?shard\w*)\W{0,3}(\d+)\s*[x×]\s*(\d+)")
_SHARDS = re.compile(
    r"(?:fsdp|shard(?:s|ing)?(?:[ _](?:size|degree|group))?)[ =:]+(\d+)\b"
    r"|(?:hsdp|hybrid[ _-]?shard\w*)[ (=:]+(\d+)\b(?!\s*[x×]\s*\d)"
    r"|\b(\d+) shards"
)
_REPLICAS = re.compile(r"(?:replicas?|replicate)[ =:]+(\d+)\b|\b(\d+) replicas")


def says_hybrid(row: MeasuredRow) -> bool:
    """Whether the row's words name hybrid sharding."""
    return _HYBRID.search(_words(row)) is not None


def replicas_of(row: MeasuredRow, mesh: Mesh, zero: int, assumed: list[str]) -> int:
    """Groups of ranks that share states each; 1 where all share them.

    Raises:
        IncompleteRowError: numbers that do not make the data-parallel ranks, or states that are not
            shared at all.
    """
    ranks = mesh.dp * mesh.cp
    if ranks == 1 or not says_hybrid(row):
        return 1
    if zero == 0:
        raise IncompleteRowError("hybrid sharding with ZeRO 0")
    shards = _shards(_words(row), mesh, assumed)
    if shards < 1 or ranks % shards:
        raise IncompleteRowError(f"groups of {shards} shards do not divide {ranks} ranks")
    if shards % mesh.ep:
        raise IncompleteRowError(f"ep {mesh.ep} across groups of {shards} shards: not priced")
    return ranks // shards


def _shards(words: str, mesh: Mesh, assumed: list[str]) -> int:
    ranks = mesh.dp * mesh.cp
    grid = _GRID.search(words)
    replicas, shards = _number(_REPLICAS, words), _number(_SHARDS, words)
    if grid:
        replicas, shards = int(grid[1]), int(grid[2])
        assumed.append(f"hybrid sharding: {replicas} replicas of {shards} shards")
    if shards is None and replicas is None:
        shards = min(ranks, max(1, mesh.gpus_per_node // mesh.tp))
        assumed.append(f"hybrid sharding: groups of {shards} shards, the ranks of a node")
        return shards
    if shards is None:
        shards = ranks // max(1, replicas or 0)
    if replicas is not None and replicas * shards != ranks:
        raise IncompleteRowError(f"{replicas} replicas of {shards} shards are not {ranks} ranks")
    return shards


def _number(pattern: re.Pattern[str], words: str) -> int | None:
    found = pattern.search(words)
    return next((int(group) for group in found.groups() if group), None) if found else None


def _words(row: MeasuredRow) -> str:
    return f"{row.sharding} {row.framework} {row.notes}".lower()
