"""One call of a block while it is exported: what it is given, what it gives, what else it does."""

from __future__ import annotations

import random
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autoplan.trace.plain_values import SIMPLE, same, snapshot
from autoplan.trace.repeat_groups import own_attributes, tensor_key
from autoplan.trace.torch_private import TreeSpec, tree_flatten, tree_unflatten

Place = tuple[str, Any]


@dataclass(frozen=True, slots=True)
class BlockCall:
    """A call, its arguments flattened and its tensors numbered.

    Attributes:
        ins: tensors among the arguments that are not the module's own, each once.
        stored: the module's parameters and buffers.
        places: by tensor id, ``("in", i)`` or ``("stored", i)``.
        key: equal for calls whose traces are the same if their modules behave the same.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[Any]
    spec: TreeSpec
    ins: list[torch.Tensor]
    stored: list[torch.Tensor]
    places: dict[int, Place]
    key: tuple

    def run(self) -> Any:
        """Runs the module's own forward."""
        return type(self.module).forward(self.module, *self.args, **self.kwargs)


def read_call(
    group: str,
    module: nn.Module,
    stored: list[torch.Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> BlockCall | None:
    """Reads a call; None when an argument is neither a tensor nor a plain constant."""
    leaves, spec = tree_flatten((args, kwargs))
    places: dict[int, Place] = {id(tensor): ("stored", i) for i, tensor in enumerate(stored)}
    ins: list[torch.Tensor] = []
    signature: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if id(leaf) not in places:
                places[id(leaf)] = "in", len(ins)
                ins.append(leaf)
            signature.append((places[id(leaf)], tensor_key(leaf)))
        elif isinstance(leaf, SIMPLE):
            signature.append((type(leaf), leaf))
        else:
            return None
    key = group, repr(spec), tuple(signature)
    return BlockCall(module, args, kwargs, leaves, spec, ins, stored, places, key)


@dataclass(frozen=True, slots=True)
class Result:
    """The structure of what a call returned; each leaf is an argument, new, or a constant."""

    leaves: tuple[Place, ...]
    spec: TreeSpec

    def holds(self, stored: Container[int]) -> bool:
        """Whether one of these parameters and buffers of the module is among the leaves."""
        return any(origin == "stored" and value in stored for origin, value in self.leaves)

    def rebuilt(self, call: BlockCall, new: Sequence[torch.Tensor]) -> Any:
        """The same result for another call, with its new tensors."""
        sources = {"in": call.ins, "stored": call.stored, "new": new}
        values = [
            value if origin == "constant" else sources[origin][value]
            for origin, value in self.leaves
        ]
        return tree_unflatten(values, self.spec)


def read_result(call: BlockCall, value: Any) -> tuple[Result, list[torch.Tensor]]:
    """The structure of a result, and its new tensors."""
    leaves, spec = tree_flatten(value)
    places = dict(call.places)
    new: list[torch.Tensor] = []
    read: list[Place] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if id(leaf) not in places:
                places[id(leaf)] = "new", len(new)
                new.append(leaf)
            read.append(places[id(leaf)])
        else:
            read.append(("constant", leaf))
    return Result(tuple(read), spec), new


class Surroundings:
    """What a call could change besides returning a result, as it was before the call."""

    def __init__(self, call: BlockCall):
        self._call = call
        self._attributes = _attributes(call.module)
        self._random = random.getstate()

    def change(self, result: Result, new: Sequence[torch.Tensor]) -> str | None:
        """What makes the finished call unfit for reuse; None when nothing does."""
        leaves, spec = tree_flatten((self._call.args, self._call.kwargs))
        if not same(self._attributes, _attributes(self._call.module)):
            return "writes attributes"
        if self._random != random.getstate():
            return "draws random numbers in Python"
        if spec != self._call.spec or any(
            one is not two for one, two in zip(leaves, self._call.leaves, strict=True)
        ):
            return "changes its arguments"
        if any(what == "constant" and not isinstance(v, SIMPLE) for what, v in result.leaves):
            return "returns something that is no tensor"
        needs = any(tensor.requires_grad for tensor in (*self._call.ins, *self._call.stored))
        if any(tensor.requires_grad != (needs and tensor.is_floating_point()) for tensor in new):
            return "returns a tensor without its gradient"
        return None


def _attributes(module: nn.Module) -> list[dict[str, Any]]:
    return [snapshot(own_attributes(part)) for part in module.modules()]
