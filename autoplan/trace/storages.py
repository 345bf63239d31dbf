"""Memory behind tensors."""

from __future__ import annotations

import torch


def storage_id(tensor: torch.Tensor) -> int:
    """Identity of the tensor's memory, valid while some tensor holds it."""
    return tensor.untyped_storage()._cdata
