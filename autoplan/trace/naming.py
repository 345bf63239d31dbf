"""Final names of nodes: qualified names of tensors, ``<module path>/<op>`` of calls.

The k-th repetition of a name gets ``#k``. Inputs, parameters, buffers and constants come before
calls, in this order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from autoplan.trace.graph import Arg, OpNode, Ref

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
    return tuple(_final(node, names) for node in ordered), names


def _base(node: OpNode) -> str:
    if node.kind == "call":
        return f"{node.module}/{operator_name(node.target)}"
    if node.kind == "constant":
        module = node.target.rpartition(".")[0]
        return f"{module}.constant" if module else "constant"
    return node.target


def live(nodes: Iterable[OpNode], output: Ref) -> list[OpNode]:
    """Without the calls that the output does not need."""
    needed = {output.node}
    kept: list[OpNode] = []
    for node in reversed(list(nodes)):
        if node.kind != "call" or node.name in needed:
            kept.append(node)
            needed.update(ref.node for ref in node.operands)
    return kept[::-1]


def operator_name(target: str) -> str:
    """``linear`` of ``aten.linear.default``."""
    return target.split(".")[1]


def rewired(node: OpNode, name: str, moved: Callable[[Ref], Ref], **changes: Any) -> OpNode:
    """A node under another name, with the references of its arguments replaced.

    Args:
        changes: of other fields.
    """
    return replace(
        node,
        name=name,
        args=tuple(_arg(arg, moved) for arg in node.args),
        kwargs=tuple((key, _arg(value, moved)) for key, value in node.kwargs),
        **changes,
    )


def _arg(arg: Arg, moved: Callable[[Ref], Ref]) -> Arg:
    if isinstance(arg, Ref):
        return moved(arg)
    if isinstance(arg, tuple):
        return tuple(_arg(item, moved) for item in arg)
    return arg


def _final(node: OpNode, names: dict[str, str]) -> OpNode:
    def moved(ref: Ref) -> Ref:
        return Ref(names[ref.node], ref.index)

    return rewired(
        node,
        names[node.name],
        moved,
        alias_of=tuple(None if ref is None else moved(ref) for ref in node.alias_of),
        saved=tuple(
            kept if kept.source is None else replace(kept, source=moved(kept.source))
            for kept in node.saved
        ),
    )
