"""A problem without the choices that cannot be in an answer that is worth having."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from autoplan.search.problem import Node, Overlap, Peak, Problem, Reader, Storage, Tensor

Kept = Sequence[tuple[int, ...]]
_T = TypeVar("_T")


def restricted(problem: Problem, kept: Kept) -> Problem:
    """The problem in which decision v has the choices ``kept[v]`` alone, in this order."""

    def rows(
        given: tuple[tuple[int, tuple[_T, ...]], ...],
    ) -> tuple[tuple[int, tuple[_T, ...]], ...]:
        return tuple((v, _at(row, kept[v])) for v, row in given)

    def tensor(old: Tensor) -> Tensor:
        return replace(
            old,
            classes=_at(old.classes, kept[old.producer]),
            readers=tuple(
                Reader(node=r.node, ports=_at(r.ports, kept[r.node])) for r in old.readers
            ),
        )

    def storage(old: Storage) -> Storage:
        holders = tuple(
            (v, frozenset(new for new, choice in enumerate(kept[v]) if choice in keep))
            for v, keep in old.holders
        )
        return replace(old, holders=holders)

    def peak(old: Peak) -> Peak:
        return replace(old, groups=tuple(rows(group) for group in old.groups))

    def overlap(old: Overlap) -> Overlap:
        return replace(old, messages_s=rows(old.messages_s), window_s=rows(old.window_s))

    return replace(
        problem,
        nodes=tuple(
            Node(name=node.name, choices=_at(node.choices, choices))
            for node, choices in zip(problem.nodes, kept, strict=True)
        ),
        tensors=tuple(map(tensor, problem.tensors)),
        storages=tuple(map(storage, problem.storages)),
        peaks=tuple(map(peak, problem.peaks)),
        overlaps=tuple(map(overlap, problem.overlaps)),
    )


def _at(row: Sequence[_T], choices: tuple[int, ...]) -> tuple[_T, ...]:
    return tuple(row[choice] for choice in choices)
