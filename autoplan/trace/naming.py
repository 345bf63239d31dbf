"""Final names of nodes: qualified names of tensors, ``<module path>/<op>`` of calls.

The k-th repetition of a name gets ``#k``. Inputs, parameters, buffers and constants come before
calls, in this order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from autoplan.trace.drafts import Draft, written
from autoplan.trace.graph import OpNode, Ref

_ORDER = {"input": 0, "parameter": 1, "buffer": 2, "constant": 3, "call": 4}


def named(drafts: Iterable[Draft]) -> tuple[tuple[OpNode, ...], dict[str, str]]:
    """The nodes in final order and under final names, and the map from old names to new."""
    ordered = sorted(drafts, key=lambda draft: _ORDER[draft.kind])
    taken: Counter[str] = Counter()
    names: dict[str, str] = {}
    for draft in ordered:
        base = _base(draft)
        names[draft.name] = f"{base}#{taken[base]}" if taken[base] else base
        taken[base] += 1

    def final(ref: Ref) -> Ref:
        return Ref(names[ref.node], ref.index)

    return tuple(written(draft, names[draft.name], final) for draft in ordered), names


def _base(node: Draft) -> str:
    if node.kind == "call":
        return f"{node.module}/{operator_name(node.target)}"
    if node.kind == "constant":
        module = node.target.rpartition(".")[0]
        return f"{module}.constant" if module else "constant"
    return node.target


def live(drafts: Iterable[Draft], results: Iterable[Ref]) -> list[Draft]:
    """Without the calls that the results do not need."""
    needed = {ref.node for ref in results}
    kept: list[Draft] = []
    for node in reversed(list(drafts)):
        if node.kind != "call" or node.name in needed:
            kept.append(node)
            needed.update(ref.node for ref in node.operands)
    return kept[::-1]


def operator_name(target: str) -> str:
    """``linear`` of ``aten.linear.default``."""
    return target.split(".")[1]
