"""Puts together what the ranks of a pipeline know of one optimizer, each of its own parameters.

All other ranks that differ from this one in ``dp`` or ``tp`` know the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from autoplan.errors import CheckpointError
from autoplan.runtime.mesh import RankMesh

Document = Mapping[str, Any]


def whole_document(own: Document, mesh: RankMesh) -> Document:
    """The document (``TrainingState.optimizer_document``) of the whole model, on every rank.

    Raises:
        CheckpointError: on every rank, when the ranks' optimizers are not alike.
    """
    if mesh.pp == 1:
        return own
    return merged([json.loads(text) for text in _gathered(json.dumps(own), mesh)])


def merged(documents: Sequence[Document]) -> Document:
    """One document from those of the stages; a parameter that several know is in it once.

    Raises:
        CheckpointError: when class, number of groups or options of a group differ.
    """
    first = documents[0]
    for other in documents[1:]:
        if other["class"] != first["class"] or _options(other) != _options(first):
            raise CheckpointError(
                "the ranks of the pipeline have optimizers of other classes, groups or options: "
                "build them alike, from each rank's pm.parameters()"
            )
    groups = [
        {
            "parameters": list(
                dict.fromkeys(name for part in parts for name in part["parameters"])
            ),
            "options": parts[0]["options"],
        }
        for parts in zip(*(document["groups"] for document in documents), strict=True)
    ]
    state = {name: entry for document in documents for name, entry in document["state"].items()}
    return {"class": first["class"], "groups": groups, "state": state}


def _options(document: Document) -> list[Any]:
    return [group["options"] for group in document["groups"]]


def _gathered(text: str, mesh: RankMesh) -> list[str]:
    """The texts of all ranks of ``pp``, as bytes in tensors, since no message may be a pickle."""
    content = torch.tensor(list(text.encode()), dtype=torch.uint8, device=mesh.device)
    group = mesh.group("pp")
    sizes = [torch.zeros(1, dtype=torch.int64, device=mesh.device) for _ in range(mesh.pp)]
    dist.all_gather(sizes, torch.tensor([len(content)], device=mesh.device), group=group)
    longest = max(int(size) for size in sizes)
    padded = content.new_zeros(longest)
    padded[: len(content)] = content
    texts = [torch.zeros_like(padded) for _ in range(mesh.pp)]
    dist.all_gather(texts, padded, group=group)
    return [
        bytes(found[: int(size)].tolist()).decode()
        for found, size in zip(texts, sizes, strict=True)
    ]
