"""One rank's file of a checkpoint, in the safetensors layout: a JSON header, then raw numbers.

The header gives each tensor's dtype, shape and byte range; its ``__metadata__`` says where each
lies in the global tensor. Nothing in it can run code.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autoplan.errors import CheckpointError
from autoplan.runtime.layout import Box
from autoplan.runtime.state import Piece

_DTYPES = {
    "C128": torch.complex128, "C64": torch.complex64,
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LENGTH_BYTES = 8
_LONGEST_NUMBER_BYTES = 16
_READ_BYTES = 2**22


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """A piece in a file: its values (read when touched) and its place in the global tensor."""

    values: Tensor
    box: Box
    shape: tuple[int, ...]


def write_pieces(path: Path, pieces: Iterable[Piece]) -> tuple[int, bytes]:
    """Writes the non-empty pieces; returns the file's bytes and its SHA-256."""
    kept = [piece for piece in pieces if piece.values.numel()]
    kept.sort(key=lambda piece: -piece.values.element_size())
    header: dict[str, Any] = {}
    places, offset = {}, 0
    for piece in kept:
        end = offset + piece.values.nbytes
        header[piece.name] = {
            "dtype": _NAMES[piece.values.dtype],
            "shape": list(piece.box.shape),
            "data_offsets": [offset, end],
        }
        places[piece.name] = {"start": list(piece.box.start), "of": list(piece.shape)}
        offset = end
    header["__metadata__"] = {"pieces": json.dumps(places)}
    text = json.dumps(header).encode()
    text += b" " * (-(_LENGTH_BYTES + len(text)) % _LONGEST_NUMBER_BYTES)
    digest = hashlib.sha256()
    with path.open("xb") as file:
        for block in (len(text).to_bytes(_LENGTH_BYTES, "little"), text, *_bytes_of(kept)):
            file.write(block)
            digest.update(block)
        file.flush()
        os.fsync(file.fileno())
        return file.tell(), digest.digest()


def read_pieces(path: Path) -> dict[str, StoredPiece]:
    """The pieces in a file that ``write_pieces`` wrote and whose checksum was right."""
    size = path.stat().st_size
    memory = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    length = int.from_bytes(memory[:_LENGTH_BYTES].numpy().tobytes(), "little")
    first = _LENGTH_BYTES + length
    header = json.loads(memory[_LENGTH_BYTES:first].numpy().tobytes())
    places = json.loads(header.pop("__metadata__")["pieces"])
    found = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        values = memory[first + start : first + end].view(_DTYPES[entry["dtype"]])
        shape = tuple(entry["shape"])
        box = Box(tuple(places[name]["start"]), shape)
        found[name] = StoredPiece(values.view(shape), box, tuple(places[name]["of"]))
    return found


def check_file(path: Path, nbytes: int, sha256: str) -> None:
    """Raises ``CheckpointError`` when the file is missing or differs from what was saved."""
    if not path.is_file():
        raise CheckpointError(f"{path} is missing from the checkpoint: restore it, or load another")
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    if path.stat().st_size != nbytes or digest.hexdigest() != sha256:
        raise CheckpointError(f"{path} is damaged (its checksum differs): load another checkpoint")


def _bytes_of(pieces: Iterable[Piece]) -> Iterator[memoryview]:
    for piece in pieces:
        flat = piece.values.detach().to("cpu").contiguous().view(-1)
        yield flat.view(torch.uint8).numpy().data
