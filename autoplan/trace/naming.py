"""Final names of nodes: qualified names of tensors, ``<module path>/<op>`` of calls.

The k-th repetition of a name gets ``#k``. Inputs, parameters, buffers and constants come before
calls, in this order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from autoplan.trace.graph import Arg, OpNode, Ref, SavedTensor

_ORDER = {"input": 0, "parameter": 1, "buffer": 2, "constant": 3, "call": 4}


def named(nodes: Iterable[OpNode]) -> tuple[tuple[OpNode, ...], dict[str, str]]:
    """The nodes in final order and under final names, and the map from old names to new."""
    ordered = sorted(nodes, key=lambda node: _ORDER[node.kind])
    taken: Counter[str] = Counter()
    names: dict[str, str] = {}
    for node in ordered:
        base = _base(node)
        names[node.name] = f"{base}#{taken[base]}" if taken[base] else base
        taken[base] += 1
    return tuple(renamed(node, names) for node in ordered), names


def _base(node: OpNode) -> str:
    if node.kind == "call":
        return f"{node.module}/{operator_name(node.target)}"
    if node.kind == "constant":
        module = node.target.rpartition(".")[0]
        return f"{module}.constant" if module else "constant"
    return node.target


def operator_name(target: str) -> str:
    """``linear`` of ``aten.linear.default``."""
    return target.split(".")[1]


def renamed(node: OpNode, names: dict[str, str]) -> OpNode:
    """A node with itself and all its references renamed."""
    return replace(
        node,
        name=names[node.name],
        args=tuple(_rename(arg, names) for arg in node.args),
        kwargs=tuple((key, _rename(value, names)) for key, value in node.kwargs),
        alias_of=tuple(_rename_ref(ref, names) for ref in node.alias_of),
        saved=tuple(_rename_saved(kept, names) for kept in node.saved),
    )


def _rename(arg: Arg, names: dict[str, str]) -> Arg:
    if isinstance(arg, Ref):
        return Ref(names[arg.node], arg.index)
    if isinstance(arg, tuple):
        return tuple(_rename(item, names) for item in arg)
    return arg


def _rename_ref(ref: Ref | None, names: dict[str, str]) -> Ref | None:
    return None if ref is None else Ref(names[ref.node], ref.index)


def _rename_saved(kept: SavedTensor, names: dict[str, str]) -> SavedTensor:
    return replace(kept, source=_rename_ref(kept.source, names))
