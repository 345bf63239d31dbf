"""The most bytes of tensors that live at once in a process, counted by their storages."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode


class LiveBytes(TorchDispatchMode):
    """Inside, follows every storage that an operator returns, as long as it lives.

    Storages are asked for their size whenever an operator has run, since FSDP2 frees gathered
    weights by making their storages empty.

    Attributes:
        peak_bytes: the most so far; to be set to 0 where counting shall begin anew.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak_bytes = 0
        self._storages: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, Tensor):
                self._follow(tensor)
        live = {s._cdata: s.nbytes() for s in self._storages}
        self.peak_bytes = max(self.peak_bytes, sum(live.values()))
        return made

    def _follow(self, tensor: Tensor) -> None:
        with torch.no_grad():
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        storage = local.untyped_storage()
        if storage.device.type != "meta":  # those of tensors that tracing fakes are
            self._storages.add(storage)
