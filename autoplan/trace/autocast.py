"""Writes out the casts that ``torch.autocast`` makes in a region of an exported graph.

Which arguments of an operator are cast is up to the dispatcher, which asks lists in C++. So each
operator is run on its fake arguments, once with autocast and once without on what the first run had
cast, and the dispatched operators of both are compared, with their dtypes. Where they are the same,
the operator with casts ahead of it is what autocast runs, backward included; an operator that
autocast changes in any other way is refused.

A weight is cast once in a region, as by autocast's cache, which is on by default and off in an
export, so that its gradients are summed in the lower precision there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode

from autoplan.trace.torch_private import (
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    storage_id,
    tree_leaves,
    tree_map,
)

_aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True, slots=True)
class Autocast:
    """Enabled autocast around a graph.

    Attributes:
        weights: placeholders of the graph that stand for parameters.
        cached: those of them that are cast, and to what.
    """

    device: str
    dtype: torch.dtype
    weights: frozenset[fx.Node]
    cached: dict[fx.Node, fx.Node] = field(default_factory=dict)


def write_casts(graph: fx.Graph, node: fx.Node, autocast: Autocast) -> bool:
    """Casts the arguments of a call as autocast does; whether that is all that it does.

    Nodes that are no calls of operators stay as they are.
    """
    if not isinstance(node.target, OpOverload):
        return True
    operands = [n for n in tree_leaves((node.args, node.kwargs)) if isinstance(n, fx.Node)]
    values = {operand: operand.meta.get("val") for operand in operands}
    if not any(isinstance(value, Tensor) for value in values.values()):
        return True
    casts = _casts(node, values, autocast)
    if casts is None:
        return False
    with graph.inserting_before(node):
        given = {operand: _cast(graph, operand, dtype, autocast, node)
                 for operand, dtype in casts.items()}  # fmt: skip
    node.args, node.kwargs = fx.map_arg((node.args, node.kwargs), lambda n: given.get(n, n))
    return True


def _cast(
    graph: fx.Graph, operand: fx.Node, dtype: torch.dtype, autocast: Autocast, reader: fx.Node
) -> fx.Node:
    """The operand in another dtype, for a reader behind."""
    value = operand.meta["val"]
    is_cached = (
        operand in autocast.weights
        and value.requires_grad
        and value.dtype == torch.float32
        and dtype == autocast.dtype
    )
    if is_cached and operand in autocast.cached:
        return autocast.cached[operand]
    made = graph.call_function(_aten.to.dtype, (operand, dtype))
    made.meta = {**reader.meta, "val": value.to(dtype)}
    if is_cached:
        autocast.cached[operand] = made
    return made


def _casts(
    node: fx.Node, values: Mapping[fx.Node, Any], autocast: Autocast
) -> dict[fx.Node, torch.dtype] | None:
    """The dtypes to which operands are cast; None where autocast does more than that."""
    target: Any = node.target

    def run(given: Mapping[fx.Node, Any]) -> Any:
        args, kwargs = tree_map(
            lambda leaf: given[leaf] if isinstance(leaf, fx.Node) else leaf,
            (node.args, node.kwargs),
        )
        return target(*args, **kwargs)

    region = torch.autocast(autocast.device, autocast.dtype, cache_enabled=False)
    seen = _watched(lambda: run(values), _mode(values), region)
    found = {
        operand: dtype
        for operand, value in values.items()
        if isinstance(value, Tensor) and (dtype := seen.casts.get(storage_id(value))) is not None
    }
    lower = {operand: dtype for operand, dtype in found.items() if dtype == autocast.dtype}
    for casts in (lower, found):  # an operator may itself cast others of its arguments
        given = {n: value.to(casts[n]) if n in casts else value for n, value in values.items()}
        plain = _watched(lambda: run(given), _mode(values))  # noqa: B023
        taken = sum(seen.times[identity] for identity in {storage_id(values[n]) for n in casts})
        is_same = plain.calls == seen.calls and plain.count == seen.count - taken
        if is_same and plain.dtypes == _dtypes(node.meta.get("val")):
            return casts
    return None


def _mode(values: Mapping[fx.Node, Any]) -> FakeTensorMode:
    return next(value.fake_mode for value in values.values() if isinstance(value, FakeTensor))


def _watched(run: Callable[[], Any], *contexts: AbstractContextManager[Any]) -> _Watch:
    watch = _Watch()
    with ExitStack() as stack:
        for context in (torch.no_grad(), *contexts, watch):
            stack.enter_context(context)
        watch.dtypes = _dtypes(run())
    return watch


class _Watch(TorchDispatchMode):
    """What a call dispatches.

    Attributes:
        calls: operators apart from casts, and the dtypes of what they read unless they are views.
        casts: the dtype to which a tensor was cast first, by the identity of its memory.
        times: how often it was cast.
        count: all casts.
        dtypes: of the results.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Sequence[torch.dtype]]] = []
        self.casts: dict[int, torch.dtype] = {}
        self.times: Counter[int] = Counter()
        self.count = 0
        self.dtypes: Sequence[torch.dtype] = ()
        self._held: list[Any] = []  # so that no memory takes the identity of one that is gone

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        dtype = kwargs.get("dtype")
        if func is _aten._to_copy.default and dtype not in (None, args[0].dtype):
            self.count += 1
            self.casts.setdefault(storage_id(args[0]), dtype)
            self.times[storage_id(args[0])] += 1
        elif func.namespace == "aten":
            self.calls.append((func, () if _is_view(func) else _dtypes((args, kwargs))))
        self._held.append((args, found := func(*args, **kwargs)))
        return found


def _is_view(func: Any) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)


def _dtypes(values: Any) -> tuple[torch.dtype, ...]:
    return tuple(value.dtype for value in tree_leaves(values) if isinstance(value, Tensor))
