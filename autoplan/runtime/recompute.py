"""Runs single operators of a block again in its backward, so that their results are not kept.

An emitted forward that is ``recomputing`` calls the operators that are to run again through
``again``. Of what autograd saves on the way, nothing stays that lies in the storage of such a
result, whoever saves it: operators that do not run again, too, save a note of where in which result
it was. What such an operator saves while it runs (log-sum-exp, masks) does not stay either. Kept
are the operators' other operands, without their history, so that they form no cycle with the graph.

When the backward first wants something that did not stay, all of the block's ``again`` calls run
once more in their order, each from what is kept and from the results before it; what autograd saves
then takes the place of what it saved before, in the order of saving. All of it goes as the backward
takes it. A backward through a graph that was retained runs them once more.

PyTorch's checkpoints cannot do this: what a checkpoint reads is kept, and an operator outside that
saves what it makes keeps that. Its selective checkpoints dispatch every operator of the block in
Python twice, and keep results that nothing needs.

Storages tell which tensors belong to which result, since views share them. They are held weakly
while they are known, so that no other takes the identity of one that is gone.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

Forward = Callable[..., Any]
_Kind = tuple[torch.Size, torch.dtype]
_Result = tuple[int, int]
"""Number of the call, and of the tensor among its results."""


def recomputing(forward: Forward) -> Forward:
    """A method that is given ``again`` as its first argument: ``again(f, *args)`` is ``f(*args)``.

    What the method's backward needs of these calls is made again there. Without gradients they are
    ordinary calls.
    """

    @functools.wraps(forward)
    def run(module: Any, *args: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(module, _called, *args)
        again = _Recomputation(_precision_of(args))
        with saved_tensors_hooks(again.pack, again.unpack):
            return forward(module, again, *args)

    run.is_recomputing = True  # pyright: ignore[reportAttributeAccessIssue]
    return run


def runs_again(forward: Forward) -> bool:
    """Whether a forward is one that ``recomputing`` made."""
    return getattr(forward, "is_recomputing", False)


@dataclass(frozen=True, slots=True)
class _View:
    """A tensor in the storage of a result."""

    result: _Result
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    requires_grad: bool

    def of(self, value: Tensor) -> Tensor:
        """The same tensor in the storage of ``value``, without history."""
        with torch.no_grad():
            view = torch.empty(0, dtype=self.dtype, device=value.device)
            return view.set_(value.untyped_storage(), self.offset, self.size, self.stride)


@dataclass(frozen=True, slots=True)
class _Slot:
    """A tensor that a call saved as its ``index``-th."""

    call: int
    index: int


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that can be repeated.

    Attributes:
        args, kwargs: with results of earlier calls as ``_View``, and other tensors detached.
        saved: what autograd saved during the call, in order.
    """

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    saved: list[_Kind] = field(default_factory=list)


class _Recomputation:
    """The calls of one forward of a block."""

    def __init__(self, precision: AbstractContextManager[Any]) -> None:
        self._precision = precision
        self._calls: list[_Call] = []
        self._storages: dict[StorageWeakRef, _Result] = {}
        self._running: _Call | None = None
        self._uses: Counter[_Result] = Counter()
        self._left: Counter[_Result] = Counter()
        self._results: dict[_Result, Tensor] = {}
        self._saved: dict[_Slot, Tensor] = {}

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        call = _Call(function, self._kept(args), self._kept(kwargs))
        self._calls.append(call)
        self._running = call
        made = function(*args, **kwargs)
        self._running = None
        given = {_storage(tensor) for tensor in _tensors((args, kwargs))}
        for index, tensor in enumerate(_tensors(made)):
            storage = _storage(tensor)
            if storage not in given:  # else it is a view of what stays, or of an earlier result
                self._storages.setdefault(storage, (len(self._calls) - 1, index))
        return made

    def pack(self, tensor: Tensor) -> Tensor | _View | _Slot:
        if self._running is not None:
            saved = self._running.saved
            saved.append((tensor.shape, tensor.dtype))
            return _Slot(len(self._calls) - 1, len(saved) - 1)
        view = self._view(tensor)
        if view is None:
            return tensor.detach()  # a result with its history would hold the node that saves it
        self._uses[view.result] += 1
        return view

    def unpack(self, packed: Tensor | _View | _Slot) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        if isinstance(packed, _Slot):
            if packed not in self._saved:
                self._repeat()
            return self._saved.pop(packed)
        if packed.result not in self._results:
            self._repeat()
        value = self._results[packed.result]
        self._left[packed.result] -= 1
        if not self._left[packed.result]:
            del self._results[packed.result]
        return packed.of(value)

    def _view(self, tensor: Tensor) -> _View | None:
        """The tensor as one in a result of these calls; None for others, which stay."""
        result = self._storages.get(_storage(tensor))
        if result is None or tensor.is_conj() or tensor.is_neg():
            return None
        return _View(
            result=result,
            dtype=tensor.dtype,
            size=tensor.shape,
            stride=tensor.stride(),
            offset=int(tensor.storage_offset()),
            requires_grad=tensor.requires_grad,
        )

    def _kept(self, value: Any) -> Any:
        def kept(tensor: Tensor) -> Tensor | _View:
            view = self._view(tensor)
            return tensor.detach().requires_grad_(tensor.requires_grad) if view is None else view

        return _mapped(value, Tensor, kept)

    def _repeat(self) -> None:
        """Runs all calls again and holds what autograd saves of them, and results still wanted."""
        self._saved.clear()
        results: dict[_Result, Tensor] = {}

        def given(view: _View) -> Tensor:
            return view.of(results[view.result]).requires_grad_(view.requires_grad)

        with torch.enable_grad(), self._precision:
            for number, call in enumerate(self._calls):
                args, kwargs = (_mapped(each, _View, given) for each in (call.args, call.kwargs))
                made = self._repeated(number, args, kwargs)
                results |= {(number, i): t.detach() for i, t in enumerate(_tensors(made))}
        self._left = self._uses.copy()
        self._results = {result: results[result] for result in self._left}

    def _repeated(self, number: int, args: Any, kwargs: Any) -> Any:
        call = self._calls[number]
        saved: list[Tensor] = []
        with saved_tensors_hooks(lambda tensor: saved.append(tensor.detach()), _nothing):
            made = call.function(*args, **kwargs)
        if [(tensor.shape, tensor.dtype) for tensor in saved] != call.saved:
            raise RuntimeError(
                f"{call.function} keeps other tensors for its backward when it runs again: leave "
                "requires_grad of the parameters as it is between forward and backward"
            )
        self._saved |= {_Slot(number, index): tensor for index, tensor in enumerate(saved)}
        return made


def _nothing(packed: None) -> Tensor:
    raise AssertionError("no backward goes through what runs again")


def _called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _precision_of(args: Any) -> AbstractContextManager[Any]:
    """The automatic precision under which the forward runs."""
    device = next((tensor.device.type for tensor in _tensors(args)), "cpu")
    return torch.autocast(
        device,
        dtype=torch.get_autocast_dtype(device),
        enabled=torch.is_autocast_enabled(device),
    )


def _storage(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, Mapping):
        yield from _tensors(tuple(value.values()))


def _mapped(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """``value`` with everything of a kind in it replaced."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_mapped(item, kind, function) for item in value)
    if isinstance(value, dict):
        return {key: _mapped(item, kind, function) for key, item in value.items()}
    return value
