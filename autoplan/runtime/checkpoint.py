"""Checkpoints on disk that survive a kill at any moment and load under any plan.

A folder holds ``index.json`` and one ``data-<token>`` folder with a file per rank. Saving writes a
fresh data folder, then replaces the index in one rename: until that moment the old index and its
data are whole, after it the new. The index holds the checksum of every file, and its own. Every
rank writes the pieces that it is the first to hold, and on loading takes from all files what
overlaps its own pieces, so the plans of writer and reader need not be alike.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from autoplan.errors import CheckpointError
from autoplan.runtime.documents import whole_document
from autoplan.runtime.mesh import RankMesh
from autoplan.runtime.state import Piece, TrainingState
from autoplan.runtime.tensor_file import StoredPiece, check_file, read_pieces, write_pieces

FORMAT = 1
INDEX = "index.json"
_SHA256_BYTES = 32


def save_checkpoint(
    path: Path,
    state: TrainingState,
    fingerprint: str,
    optimizer: Optimizer | None,
    extra: Mapping[str, Any],
) -> None:
    """Writes weights, buffers, optimizer and ``extra``; every rank calls it.

    Raises:
        CheckpointError: on every rank, when any rank cannot write or what is given is not JSON.
    """
    _check_json(extra, "extra")
    document = None
    pieces = state.model_pieces()
    if optimizer is not None:
        own = state.optimizer_document(optimizer)
        _check_json(own, "optimizer")
        document = whole_document(own, state.mesh)
        pieces = chain(pieces, state.optimizer_pieces(optimizer))
    folder = path / f"data-{_shared_token(state.mesh)}"
    files = _write_data(folder, [piece for piece in pieces if piece.is_first_copy], state.mesh)
    content = {
        "format": FORMAT,
        "fingerprint": fingerprint,
        "shapes": state.shapes(),
        "files": files,
        "optimizer": document,
        "random": state.random.document(),
        "extra": dict(extra),
    }
    failure = None
    if state.mesh.rank == 0:
        try:
            _replace_index(path, content)
            _remove_others(path, folder)
        except OSError as error:
            failure = CheckpointError(f"cannot write {path}: {error.strerror}")
    _agree(failure, state.mesh)


def load_checkpoint(
    path: Path, state: TrainingState, fingerprint: str, optimizer: Optimizer | None
) -> dict[str, Any]:
    """Reads a checkpoint into ``state`` and ``optimizer``; returns its ``extra``.

    Raises:
        CheckpointError: on every rank, when it is missing, damaged or of another model. Nothing
            has been changed then.
    """
    failure, content = None, {}
    try:
        content = _read_index(path)
        _check_model(path, content, state)
        for number, file in enumerate(content["files"]):
            if number % state.mesh.world_size == state.mesh.rank:
                check_file(path / file["name"], file["bytes"], file["sha256"])
        if optimizer is not None and content["optimizer"] is None:
            raise CheckpointError(f"{path} was saved without an optimizer: load it without one")
        if optimizer is not None:
            state.check_optimizer(optimizer, content["optimizer"])
    except CheckpointError as error:
        failure = error
    _agree(failure, state.mesh)
    if content["fingerprint"] != fingerprint:
        warnings.warn(
            f"{path} was written by a model with these weights but another computation",
            stacklevel=3,
        )
    pieces = state.model_pieces()
    if optimizer is not None:
        state.prepare_optimizer(optimizer, content["optimizer"] or {})
        pieces = chain(pieces, state.optimizer_pieces(optimizer))
    if "random" in content:
        state.random.restore(content["random"])
    _fill(pieces, [read_pieces(path / file["name"]) for file in content["files"]])
    state.mesh.barrier()
    return content["extra"]


def _shared_token(mesh: RankMesh) -> str:
    token = torch.tensor(secrets.randbits(62), device=mesh.device)
    if mesh.world_size > 1:
        dist.broadcast(token, src=0)
    return f"{token.item():016x}"


def _write_data(folder: Path, pieces: list[Piece], mesh: RankMesh) -> list[dict[str, Any]]:
    """Writes this rank's file; returns the index entries of all ranks' files."""
    name = f"rank-{mesh.rank:05d}.safetensors"
    failure, nbytes, sha256 = None, 0, bytes(_SHA256_BYTES)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        nbytes, sha256 = write_pieces(folder / name, pieces)
    except OSError as error:
        failure = CheckpointError(f"cannot write {folder / name}: {error.strerror}")
    _agree(failure, mesh)
    own = torch.tensor([nbytes, *sha256], dtype=torch.int64, device=mesh.device)
    rows = [torch.empty_like(own) for _ in range(mesh.world_size)]
    if mesh.world_size > 1:
        dist.all_gather(rows, own)
    else:
        rows = [own]
    return [
        {
            "name": f"{folder.name}/rank-{rank:05d}.safetensors",
            "bytes": size,
            "sha256": bytes(digest).hex(),
        }
        for rank, (size, *digest) in enumerate(row.tolist() for row in rows)
    ]


def _encode_index(content: Mapping[str, Any]) -> bytes:
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return json.dumps({"content": content, "sha256": digest}, indent=1, sort_keys=True).encode()


def _replace_index(path: Path, content: Mapping[str, Any]) -> None:
    fresh = path / f"{INDEX}.new"
    with fresh.open("wb") as file:
        file.write(_encode_index(content))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path / INDEX)
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _remove_others(path: Path, kept: Path) -> None:
    """Removes data that no index names: of older saves, and of saves that were cut short."""
    for folder in path.glob("data-*"):
        if folder != kept:
            shutil.rmtree(folder, ignore_errors=True)


def _read_index(path: Path) -> dict[str, Any]:
    try:
        raw = (path / INDEX).read_bytes()
    except OSError:
        raise CheckpointError(f"{path} holds no checkpoint ({INDEX} is missing)") from None
    try:
        content = json.loads(raw)["content"]
        intact = _encode_index(content) == raw
    except (ValueError, KeyError, TypeError):
        intact, content = False, {}
    if not intact:
        raise CheckpointError(f"{path / INDEX} is damaged: load another checkpoint")
    if content["format"] != FORMAT:
        raise CheckpointError(f"{path} has format {content['format']}; this version reads {FORMAT}")
    return content


def _check_model(path: Path, content: Mapping[str, Any], state: TrainingState) -> None:
    saved, own = content["shapes"], state.shapes()
    differing = sorted(name for name in {*saved, *own} if saved.get(name) != own.get(name))
    if differing:
        name = differing[0]
        raise CheckpointError(
            f"{path} is of another model: {name!r} has shape {saved.get(name)} there and "
            f"{own.get(name)} here ({len(differing)} tensors differ)"
        )


def _fill(pieces: Iterable[Piece], files: list[dict[str, StoredPiece]]) -> None:
    for piece in pieces:
        filled = 0
        for stored in _named(piece.name, files):
            common = piece.box.overlap(stored.box)
            if common is not None:
                values = stored.values[common.within(stored.box)]
                piece.values[common.within(piece.box)].copy_(values)
                filled += values.numel()
        if filled != piece.values.numel():
            raise CheckpointError(f"{piece.name} is not whole in the checkpoint: load another")


def _named(name: str, files: list[dict[str, StoredPiece]]) -> Iterator[StoredPiece]:
    return (file[name] for file in files if name in file)


def _agree(failure: CheckpointError | None, mesh: RankMesh) -> None:
    """Raises on every rank when any rank failed, so that none waits for the others."""
    failed = torch.tensor(float(failure is not None), device=mesh.device)
    if mesh.sum_over_world(failed).item() == 0:
        return
    raise failure or CheckpointError("another rank could not read or write the checkpoint")


def _check_json(value: Any, where: str) -> None:
    """Raises unless the value comes back from JSON as it was."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise CheckpointError(f"{where} has the key {key!r}: keys must be text")
            _check_json(item, f"{where}[{key!r}]")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_json(item, f"{where}[{index}]")
    elif not (value is None or isinstance(value, bool | int | float | str)):
        raise CheckpointError(
            f"{where} is a {type(value).__name__}: a checkpoint holds text, numbers, lists and "
            "mappings with text keys"
        )
