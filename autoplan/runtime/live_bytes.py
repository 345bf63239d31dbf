"""Follows the storages of tensors, counts the bytes that live at once, and says what they are.

A storage is followed from the operator that first returns it until nothing holds it. Some change
their size meanwhile: FSDP2 frees gathered weights by making their storages empty.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from autoplan.runtime.torch_private import FakeTensor, TorchDispatchMode, storage_id

Kind = Callable[[], str]


class LiveBytes(TorchDispatchMode):
    """Inside, counts every storage that an operator returns, as long as it lives.

    Args:
        fakes: whether tensors without values count; else those that tracing fakes do not.
        kind: told when a storage is first met, what it is.

    Attributes:
        peak_bytes: the most so far.
        at_peak: bytes by kind at that moment.
    """

    def __init__(self, *, fakes: bool = False, kind: Kind = lambda: "") -> None:
        super().__init__()
        self.peak_bytes = 0
        self.at_peak: Mapping[str, int] = {}
        self._fakes = fakes
        self._kind = kind
        self._live: dict[int, tuple[weakref.ref[Any], str, int]] = {}
        self._by_kind: Counter[str] = Counter()
        self._total = 0

    def restart(self) -> None:
        """Counts the peak anew, from what lives now."""
        self.peak_bytes = 0
        self._note_peak()

    def watch(self, tensors: Iterable[Tensor]) -> None:
        """Counts tensors that were made before."""
        for tensor in tensors:
            self._follow(tensor)

    def __enter__(self) -> Any:
        self._resizes = _resizes_told(self._resized)
        self._resizes.__enter__()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._resizes.__exit__(*raised)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = self.run(func, args, kwargs or {})
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, Tensor):
                self._follow(tensor)
        return made

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operator."""
        return func(*args, **kwargs)

    def relabel(self, tensor: Tensor, kind: str) -> None:
        """Says anew of what kind a tensor is."""
        key = storage_id(_local(tensor).untyped_storage())
        known = self._live.get(key)
        if known is not None:
            ref, before, nbytes = known
            self._live[key] = ref, kind, nbytes
            self._by_kind[before] -= nbytes
            self._by_kind[kind] += nbytes

    def _follow(self, tensor: Tensor) -> None:
        local = _local(tensor)
        storage = local.untyped_storage()
        if not (self._fakes if isinstance(local, FakeTensor) else storage.device.type != "meta"):
            return
        key = storage_id(storage)
        known = self._live.get(key)
        if known is None or known[0]() is not storage:
            self._let_go(key, None)
            gone = weakref.ref(storage, lambda ref: self._let_go(key, ref))
            self._live[key] = gone, self._kind(), 0
        self._resized(storage)

    def _resized(self, storage: Any) -> None:
        key = storage_id(storage)
        known = self._live.get(key)
        if known is None or known[0]() is not storage:
            return
        ref, kind, before = known
        now = storage.nbytes()
        if now != before:
            self._live[key] = ref, kind, now
            self._add(kind, now - before)

    def _let_go(self, key: int, ref: Any) -> None:
        known = self._live.get(key)
        if known is not None and ref in (None, known[0]):
            del self._live[key]
            self._add(known[1], -known[2])

    def _add(self, kind: str, nbytes: int) -> None:
        self._by_kind[kind] += nbytes
        self._total += nbytes
        if self._total > self.peak_bytes:
            self._note_peak()

    def _note_peak(self) -> None:
        self.peak_bytes, self.at_peak = self._total, dict(self._by_kind)


def _local(tensor: Tensor) -> Tensor:
    """This rank's piece."""
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@contextmanager
def _resizes_told(told: Callable[[Any], None]) -> Iterator[None]:
    """Inside, ``told`` hears of every storage whose size was changed."""
    resize = torch.UntypedStorage.resize_

    def resized(storage: Any, nbytes: int) -> Any:
        found = resize(storage, nbytes)
        told(storage)
        return found

    with mock.patch.object(torch.UntypedStorage, "resize_", resized):
        yield
