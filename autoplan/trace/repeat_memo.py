"""Memoises block calls while a model is exported, so that each distinct block is traced once.

The first call of a block is traced between two marks; a later call that must give the same graph
becomes one ``autoplan::block`` node. A call reuses a traced one only if

1. the modules are of one group (``repeat_groups``), and still have the parts that they had,
2. every hidden attribute that the traced call read has the same value here,
3. the arguments have the same structure, constants, tensor metadata and aliasing, under the same
   grad and autocast state, and
4. the traced call had no side effect that can be seen: attribute writes, changed arguments, random
   numbers, outputs that are no tensors.

The last member of every group is traced as well, as a witness that ``regions`` compares with the
first. Not seen is control flow through loops over ``self.__dict__`` or through objects outside the
block.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from autoplan.trace.block_calls import BlockCall, Result, Surroundings, read_call, read_result
from autoplan.trace.hidden import HIDDEN, reveal
from autoplan.trace.plain_values import same
from autoplan.trace.repeat_errors import CannotFoldError
from autoplan.trace.repeat_groups import buffers_of, find_groups, parts_of, stored_tensors
from autoplan.trace.repeat_ops import MARK, describe
from autoplan.trace.stand_ins import Results, stand_in
from autoplan.trace.torch_private import module_getattr, plain_tensor_access
from autoplan.trace.withheld import WithheldParameters

Reads = dict[tuple[str, str], Any]


@dataclass(frozen=True, slots=True)
class TracedBlock:
    """A call traced between marks: its group, and the equal earlier call if it is a witness."""

    key: str
    group: str
    equals: str | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    """A traced call as it can be reused."""

    key: str
    reads: Reads
    result: Result
    outputs: str
    results: Results


@dataclass(frozen=True, slots=True)
class _Recording:
    """The hidden attributes read by the call being traced, by relative path and name."""

    paths: dict[int, list[str]]
    reads: Reads = field(default_factory=dict)


class BlockMemo:
    """Wraps the block forwards of a cloned model; ``active`` must surround the export.

    Attributes:
        traced: the calls traced between marks, by key, after the export.
    """

    def __init__(self, root: nn.Module, banned: Collection[str], in_full: Collection[str]):
        self.traced: dict[str, TracedBlock] = {}
        self._root = root
        self._known: dict[tuple, list[_Known]] = defaultdict(list)
        self._recording: _Recording | None = None
        self._state = _dispatch_state()
        groups = find_groups(root, banned)
        self.withheld = WithheldParameters(root, groups, in_full)
        for group in groups:
            witness = group.members[-1][1]
            for path, module in group.members:
                forward = self._wrapped(group.name, path, module, is_witness=module is witness)
                module.__dict__["forward"] = forward

    @contextmanager
    def active(self) -> Iterator[None]:
        """Sees reads of hidden attributes, and withholds parameters; gives both back at the end."""
        try:
            with self.withheld.active(), module_getattr(self._seeing):
                yield
        finally:
            reveal(self._root)

    def _seeing(self, original: Callable[..., Any]) -> Callable[[nn.Module, str], Any]:
        def getter(module: nn.Module, name: str) -> Any:
            hidden = module.__dict__.get(HIDDEN)
            if hidden is None or name not in hidden:
                return original(module, name)
            if self._recording is not None:
                for path in self._recording.paths.get(id(module), ()):
                    self._recording.reads[path, name] = hidden[name]
            return hidden[name]

        return getter

    def _wrapped(
        self, group: str, path: str, module: nn.Module, *, is_witness: bool
    ) -> Callable[..., Any]:
        parts = parts_of(module)

        def forward(*args: Any, **kwargs: Any) -> Any:
            call = known = None
            same_parts = self.withheld.parts_of(path) or parts_of(module) == parts
            if same_parts and self._recording is None and _dispatch_state() == self._state:
                with plain_tensor_access():
                    stored = self._stored(path, module)
                    call = read_call(group, module, stored, args, kwargs)
                    known = self._find(path, call) if call else None
            if call is None:
                return type(module).forward(module, *args, **kwargs)
            if known is None or is_witness:
                self.withheld.need(path)
                return self._trace(group, f"{path}#{len(self.traced)}", call, known)
            return self._stand_in(path, call, known)

        return forward

    def _stored(self, path: str, module: nn.Module) -> list[torch.Tensor]:
        withheld = self.withheld.of(path)
        if not withheld:
            return stored_tensors(module)
        return [*withheld, *([] if self.withheld.parts_of(path) else buffers_of(module))]

    def _stand_in(self, path: str, call: BlockCall, known: _Known) -> Any:
        withheld = self.withheld.of(path)
        if withheld and (
            known.result.holds(range(len(withheld))) or not _grads_follow(call.ins, withheld)
        ):
            self.withheld.need(path)
        with plain_tensor_access():
            stored = call.stored[len(withheld) :]
            new = stand_in(known.key, path, call.ins, stored, known.outputs, known.results)
            return known.result.rebuilt(call, new)

    def _find(self, path: str, call: BlockCall) -> _Known | None:
        given = self.withheld.parts_of(path)
        parts = given or dict(call.module.named_modules(remove_duplicate=False))
        for known in self._known[call.key]:
            if all(
                path in parts and _hides(parts[path], name, value)
                for (path, name), value in known.reads.items()
            ):
                return known
        return None

    def _trace(self, group: str, key: str, call: BlockCall, known: _Known | None) -> Any:
        surroundings = Surroundings(call)
        recording = _Recording(_relative_paths(call.module))
        MARK(f"enter:{key}", call.ins, call.stored)
        self._recording = recording
        try:
            value = call.run()
        finally:
            self._recording = None
        result, new = read_result(call, value)
        MARK(f"exit:{key}", new, [])
        with plain_tensor_access():
            self.traced[key] = TracedBlock(key, group, known.key if known else None)
            change = surroundings.change(result, new)
            if change and known:
                raise CannotFoldError(group, change)
            if not change and not known:
                reusable = _Known(key, recording.reads, result, describe(new), Results(new))
                self._known[call.key].append(reusable)
        return value


def _hides(module: nn.Module, name: str, value: Any) -> bool:
    """Whether a module has a hidden attribute of this value."""
    hidden = module.__dict__.get(HIDDEN, {})
    return name in hidden and same(hidden[name], value)


def _grads_follow(ins: Sequence[torch.Tensor], withheld: Sequence[torch.Tensor]) -> bool:
    """Whether a block's results need gradients without the withheld parameters as with them."""
    needed = any(tensor.requires_grad for tensor in withheld)
    return not needed or any(tensor.requires_grad for tensor in ins)


def _relative_paths(module: nn.Module) -> dict[int, list[str]]:
    paths: dict[int, list[str]] = defaultdict(list)
    for path, part in module.named_modules(remove_duplicate=False):
        paths[id(part)].append(path)
    return paths


def _dispatch_state() -> tuple:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        *(torch.is_autocast_enabled(device) for device in ("cpu", "cuda")),
    )
