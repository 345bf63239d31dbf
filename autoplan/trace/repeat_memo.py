"""Memoises block calls while a model is exported, so that each distinct block is traced once.

The first call of a block is traced between two marks; a later call that must give the same graph
becomes one ``autoplan::block`` node. A call reuses a traced one only if

1. the modules are of one group (``repeat_groups``),
2. every hidden attribute that the traced call read has the same value here,
3. the arguments have the same structure, constants, tensor metadata and aliasing, under the same
   grad and autocast state, and
4. the traced call had no side effect that can be seen: attribute writes, changed arguments, random
   numbers, outputs that are no tensors.

The last member of every group is traced as well, as a witness that ``regions`` compares with the
first. Not seen is control flow through ``self.__dict__`` or through objects outside the block.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.fx import _symbolic_trace
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from autoplan.trace.plain_values import SIMPLE, same, snapshot
from autoplan.trace.repeat_groups import (
    HIDDEN,
    Group,
    find_groups,
    own_attributes,
    stored_tensors,
    tensor_key,
)
from autoplan.trace.repeat_ops import BLOCK, MARK, describe

Reads = dict[tuple[str, str], Any]
_Quiet = torch._C.DisableTorchFunction


class CannotFoldError(Exception):
    """A group turned out to be unsafe: export again and trace its blocks in full."""

    def __init__(self, group: str, reason: str):
        super().__init__(f"{group}: {reason}")
        self.group = group


@dataclass(frozen=True, slots=True)
class TracedBlock:
    """One call that was traced between marks: its group, and the equal earlier call if a witness."""

    key: str
    group: str
    equals: str | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    """A traced call as it can be reused."""

    key: str
    reads: Reads
    places: tuple[tuple[str, Any], ...]
    spec: TreeSpec
    outputs: str


@dataclass(slots=True)
class _Call:
    """The arguments of one call: flat, numbered, and as the key of the memo."""

    leaves: list[Any]
    spec: TreeSpec
    ins: list[torch.Tensor]
    stored: list[torch.Tensor]
    place: dict[int, tuple[str, int]]
    key: tuple = ()


@dataclass(slots=True)
class _Recording:
    """The hidden attributes read by the call being traced, by relative path and name."""

    paths: dict[int, list[str]]
    reads: Reads = field(default_factory=dict)


class BlockMemo:
    """Wraps the block forwards of a cloned model; ``active`` must surround the export.

    Attributes:
        traced: the calls traced between marks, by key, after the export.
    """

    def __init__(self, root: nn.Module, banned: Collection[str]):
        self.traced: dict[str, TracedBlock] = {}
        self._known: dict[tuple, list[_Known]] = defaultdict(list)
        self._recording: _Recording | None = None
        self._busy = False
        self._state = _dispatch_state()
        for group in find_groups(root, banned):
            for path, module in group.members:
                module.__dict__["forward"] = self._wrapped(group, path, module)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Sees reads of hidden attributes; fx keeps its own reference to the original getter."""
        original = nn.Module.__getattr__

        def getter(module: nn.Module, name: str) -> Any:
            hidden = module.__dict__.get(HIDDEN)
            if hidden is None or name not in hidden:
                return original(module, name)
            if self._recording is not None:
                for path in self._recording.paths.get(id(module), ()):
                    self._recording.reads[path, name] = hidden[name]
            return hidden[name]

        kept = _symbolic_trace._orig_module_getattr
        try:
            nn.Module.__getattr__ = _symbolic_trace._orig_module_getattr = getter
            yield
        finally:
            nn.Module.__getattr__, _symbolic_trace._orig_module_getattr = original, kept

    def _wrapped(self, group: Group, path: str, module: nn.Module):
        run = type(module).forward
        is_witness = module is group.members[-1][1]

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._busy or _dispatch_state() != self._state:
                return run(module, *args, **kwargs)
            with _Quiet():
                call = _read_call(group, module, args, kwargs)
                known = self._find(call, module) if call else None
            if call is None:
                return run(module, *args, **kwargs)
            if known and not is_witness:
                outputs = BLOCK(known.key, call.ins, call.stored, known.outputs)
                return _rebuilt(known, {"out": outputs, "in": call.ins, "stored": call.stored})
            return self._trace(group, path, module, call, known, args, kwargs)

        return forward

    def _find(self, call: _Call, module: nn.Module) -> _Known | None:
        hidden = {
            path: part.__dict__.get(HIDDEN, {})
            for path, part in module.named_modules(remove_duplicate=False)
        }
        for known in self._known[call.key]:
            if all(
                name in hidden.get(path, ()) and same(hidden[path][name], value)
                for (path, name), value in known.reads.items()
            ):
                return known
        return None

    def _trace(self, group, path, module, call, known, args, kwargs) -> Any:
        key = f"{path}#{len(self.traced)}"
        recording = _Recording(_relative_paths(module))
        before = _attributes(module), random.getstate()
        MARK(f"enter:{key}", call.ins, call.stored)
        self._recording, self._busy = recording, True
        try:
            result = type(module).forward(module, *args, **kwargs)
        finally:
            self._recording, self._busy = None, False
        leaves, spec = tree_flatten(result)
        places, outputs = _place_outputs(leaves, call)
        MARK(f"exit:{key}", outputs, [])
        with _Quiet():
            unsafe = _side_effect(before, module, call, args, kwargs, places)
            self.traced[key] = TracedBlock(key, group.name, known.key if known else None)
            if unsafe and known:
                raise CannotFoldError(group.name, unsafe)
            if not unsafe and not known:
                self._known[call.key].append(
                    _Known(key, recording.reads, places, spec, describe(outputs))
                )
        return result


def _read_call(group: Group, module: nn.Module, args: tuple, kwargs: dict) -> _Call | None:
    """Reads a call; None when an argument is neither a tensor nor a plain constant."""
    leaves, spec = tree_flatten((args, kwargs))
    stored = stored_tensors(module)
    place = {id(tensor): ("stored", index) for index, tensor in enumerate(stored)}
    call = _Call(leaves, spec, [], stored, place)
    signature: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if id(leaf) not in place:
                place[id(leaf)] = "in", len(call.ins)
                call.ins.append(leaf)
            signature.append((place[id(leaf)], tensor_key(leaf)))
        elif isinstance(leaf, SIMPLE):
            signature.append((type(leaf), leaf))
        else:
            return None
    call.key = group.name, repr(spec), tuple(signature)
    return call


def _place_outputs(
    leaves: Sequence[Any], call: _Call
) -> tuple[tuple[tuple[str, Any], ...], list[torch.Tensor]]:
    """Where each leaf of a result comes from, and the tensors among them that are new."""
    places: list[tuple[str, Any]] = []
    new: list[torch.Tensor] = []
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            places.append(("constant", leaf))
            continue
        if id(leaf) not in call.place:
            call.place[id(leaf)] = "out", len(new)
            new.append(leaf)
        places.append(call.place[id(leaf)])
    return tuple(places), new


def _rebuilt(known: _Known, tensors: dict[str, Sequence[torch.Tensor]]) -> Any:
    leaves = [
        value if origin == "constant" else tensors[origin][value] for origin, value in known.places
    ]
    return tree_unflatten(leaves, known.spec)


def _side_effect(before, module, call: _Call, args, kwargs, places) -> str | None:
    attributes, state = before
    leaves, spec = tree_flatten((args, kwargs))
    if not same(attributes, _attributes(module)):
        return "writes attributes"
    if state != random.getstate():
        return "draws random numbers in Python"
    if spec != call.spec or any(a is not b for a, b in zip(leaves, call.leaves, strict=True)):
        return "changes its arguments"
    if any(o == "constant" and not isinstance(value, SIMPLE) for o, value in places):
        return "returns something that is no tensor"
    return None


def _attributes(module: nn.Module) -> list[dict[str, Any]]:
    return [snapshot(own_attributes(part)) for part in module.modules()]


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
