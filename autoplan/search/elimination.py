"""The exact optimum of many small decisions, by eliminating one decision after another.

Time without a memory limit is a sum of tables, each over few decisions: one for every decision, one
for every tensor over its producer and readers. Eliminating decision v leaves the table

    m(neighbours) = min over choices c of v of the sum of all tables that involve v

over the decisions that shared a table with v, and the optimum stays what it was (bucket
elimination: R. Dechter, Artificial Intelligence 113, 1999). Decisions go in the order of the
smallest table left. Graphs of operators are nearly chains, so tables stay small and one optimum
takes milliseconds, where an integer program takes a tenth of a second.

Among equal choices the first is taken, so answers do not depend on anything else.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoplan.search.problem import Problem, Tensor

LARGEST_TABLE = 1 << 18
"""Entries of a table that is still worth making."""

_Costs = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Table:
    """Seconds for every combination of choices of the decisions in ``scope``, ascending."""

    scope: tuple[int, ...]
    seconds: _Costs


class Elimination:
    """The tables of a problem's conversions, and the order in which its decisions go.

    Overlaps and memory are not in it.
    """

    def __init__(self, problem: Problem) -> None:
        self._sizes = [len(node.choices) for node in problem.nodes]
        priced = [tensor for tensor in problem.tensors if any(map(any, tensor.conversion_s))]
        scopes = [_scope(tensor) for tensor in priced]
        self._order = _order(self._sizes, scopes)
        self._tables: tuple[_Table, ...] = ()
        if self.is_small:
            self._tables = tuple(
                _Table(scope, _conversions(tensor, scope))
                for tensor, scope in zip(priced, scopes, strict=True)
            )

    @property
    def is_small(self) -> bool:
        """Whether all tables are small enough; ``minimise`` may be called only then."""
        return self._order is not None

    def minimise(self, node_s: Sequence[_Costs]) -> tuple[float, tuple[int, ...]]:
        """The least seconds and the choices that take them; infinite when none are possible.

        Args:
            node_s: seconds of every choice, by decision.
        """
        assert self._order is not None
        waiting: list[list[_Table]] = [[] for _ in self._sizes]
        place = {number: turn for turn, number in enumerate(self._order)}

        def put(table: _Table) -> None:
            waiting[min(place[number] for number in table.scope)].append(table)

        for table in self._tables:
            put(table)
        total, taken = 0.0, []
        for turn, number in enumerate(self._order):
            tables = [_Table((number,), node_s[number]), *waiting[turn]]
            scope = tuple(sorted({other for table in tables for other in table.scope}))
            seconds = _sum(tables, scope)
            axis = scope.index(number)
            rest = (*scope[:axis], *scope[axis + 1 :])
            taken.append((number, rest, seconds.argmin(axis)))
            least = seconds.min(axis)
            if rest:
                put(_Table(rest, least))
            else:
                total += float(least)
        return total, self._choices(taken)

    def _choices(
        self, taken: Iterable[tuple[int, tuple[int, ...], npt.NDArray[np.intp]]]
    ) -> tuple[int, ...]:
        """Backwards through the order: each decision as its neighbours were decided."""
        choices = [0] * len(self._sizes)
        for number, rest, best in reversed(list(taken)):
            choices[number] = int(best[tuple(choices[other] for other in rest)])
        return tuple(choices)


def _scope(tensor: Tensor) -> tuple[int, ...]:
    return tuple(sorted({tensor.producer, *(reader.node for reader in tensor.readers)}))


def _conversions(tensor: Tensor, scope: tuple[int, ...]) -> _Costs:
    """Seconds of a tensor's conversions; readers with equal wishes pay once."""

    def along(node: int, classes: Sequence[int]) -> npt.NDArray[np.intp]:
        return np.array(classes).reshape([-1 if other == node else 1 for other in scope])

    table = np.array(tensor.conversion_s)
    left = along(tensor.producer, tensor.classes)
    ports = [along(reader.node, reader.ports) for reader in dict.fromkeys(tensor.readers)]
    seconds = table[left, ports[0]]
    for number, port in enumerate(ports[1:], 1):
        own = table[left, port]
        for before in ports[:number]:
            own = np.where(port == before, 0.0, own)
        seconds = seconds + own
    return seconds


def _sum(tables: Iterable[_Table], scope: tuple[int, ...]) -> _Costs:
    """The tables added up over the decisions of ``scope``, of which each has some."""
    total: _Costs = np.zeros((1,) * len(scope))
    for table in tables:
        sizes = iter(table.seconds.shape)
        held = set(table.scope)
        total = total + table.seconds.reshape([next(sizes) if n in held else 1 for n in scope])
    return total


def _order(sizes: Sequence[int], scopes: Iterable[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Decisions by the smallest table that eliminating them makes; None if one is too large."""
    near: list[set[int]] = [set() for _ in sizes]
    for scope in scopes:
        for number in scope:
            near[number].update(scope)
    for number, others in enumerate(near):
        others.discard(number)

    def entries(number: int) -> int:
        return math.prod(sizes[other] for other in near[number]) * sizes[number]

    waiting = [(entries(number), number) for number in range(len(sizes))]
    heapq.heapify(waiting)
    order: dict[int, None] = {}
    while waiting:
        known, number = heapq.heappop(waiting)
        if number in order or known != entries(number):
            continue
        if known > LARGEST_TABLE:
            return None
        order[number] = None
        for other in near[number]:
            near[other] |= near[number]
            near[other] -= {other, number}
            heapq.heappush(waiting, (entries(other), other))
    return tuple(order)
