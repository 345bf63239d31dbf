"""Places the boxes of a directed graph without cycles: in layers, each behind what it reads.

Layers by longest path; an edge over several layers passes each at a waypoint; within a layer, boxes
stand in the order of the means of their neighbours' places (Sugiyama, Tagawa and Toda 1981), as
near to these as the widths of the others let them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_SWEEPS = 8
_GAP = 22
_WAYPOINT = 8

Edge = tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Where boxes are.

    Attributes:
        x: of each box's middle; the leftmost box begins at zero.
        layer: of each box.
        paths: for each edge, x in each layer that it meets, from its source to its target.
        width: of the whole.
        layers: how many.
    """

    x: tuple[float, ...]
    layer: tuple[int, ...]
    paths: Mapping[Edge, tuple[float, ...]]
    width: float
    layers: int


def layout(widths: Sequence[float], edges: Sequence[Edge]) -> Layout:
    """Places boxes.

    Args:
        widths: of the boxes, each numbered behind all that it reads.
        edges: pairs of a box and one that reads it.
    """
    edges = [*dict.fromkeys(edges)]
    layer = _layers(len(widths), edges)
    all_layer, all_widths, chains = [*layer], [*widths], dict[Edge, list[int]]()
    for source, target in edges:
        between = range(layer[source] + 1, layer[target])
        waypoints = [*range(len(all_layer), len(all_layer) + len(between))]
        all_layer += between
        all_widths += [_WAYPOINT] * len(between)
        chains[source, target] = [source, *waypoints, target]
    steps = [pair for chain in chains.values() for pair in itertools.pairwise(chain)]
    x = _Places(all_layer, all_widths, steps).settle()
    left = min((at - width / 2 for at, width in zip(x, all_widths, strict=True)), default=0.0)
    right = max((at + width / 2 for at, width in zip(x, all_widths, strict=True)), default=0.0)
    return Layout(
        x=tuple(at - left for at in x[: len(widths)]),
        layer=tuple(layer),
        paths={edge: tuple(x[node] - left for node in chain) for edge, chain in chains.items()},
        width=right - left,
        layers=max(layer, default=-1) + 1,
    )


def _layers(count: int, edges: Sequence[Edge]) -> list[int]:
    """The longest way to each box; what reads nothing stands right before its first reader."""
    found = [0] * count
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        found[target] = max(found[target], found[source] + 1)
    reading = {target for _, target in edges}
    for number in range(count):
        readers = [found[target] for source, target in edges if source == number]
        if number not in reading and readers:
            found[number] = min(readers) - 1
    return found


class _Places:
    """The places of boxes and waypoints, improved layer by layer."""

    def __init__(
        self, layer: Sequence[int], widths: Sequence[float], steps: Sequence[Edge]
    ) -> None:
        self._widths = widths
        self._rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
        for number, at in enumerate(layer):
            self._rows[at].append(number)
        self._above: list[list[int]] = [[] for _ in layer]
        self._below: list[list[int]] = [[] for _ in layer]
        for source, target in steps:
            self._below[source].append(target)
            self._above[target].append(source)
        self._x = [0.0] * len(layer)

    def settle(self) -> list[float]:
        """Sweeps down and up; the last sweeps look both ways, in the order that was found."""
        for row in self._rows:
            self._place(row, [float(number) for number in range(len(row))])
        for _ in range(_SWEEPS):
            for rows, near in (
                (self._rows[1:], self._above),
                (self._rows[-2::-1], self._below),
            ):
                for row in rows:
                    wanted = self._means(row, near)
                    order = sorted(range(len(row)), key=wanted.__getitem__)
                    row[:] = [row[index] for index in order]
                    self._place(row, [wanted[index] for index in order])
        both = [up + down for up, down in zip(self._above, self._below, strict=True)]
        for _ in range(_SWEEPS):
            for row in self._rows:
                self._place(row, self._means(row, both))
        return self._x

    def _means(self, row: Sequence[int], near: Sequence[Sequence[int]]) -> list[float]:
        return [
            sum(self._x[other] for other in near[number]) / len(near[number])
            if near[number]
            else self._x[number]
            for number in row
        ]

    def _place(self, row: Sequence[int], wanted: Sequence[float]) -> None:
        """As near to the wanted places as the order and the widths allow, by least squares.

        With what lies between boxes taken off, their places ascend: neighbours that do not are
        pooled at their mean (isotonic regression).
        """
        begins, at = [], 0.0
        for before, number in zip([None, *row], row, strict=False):
            if before is not None:
                at += (self._widths[before] + self._widths[number]) / 2 + _GAP
            begins.append(at)
        pools: list[tuple[float, int]] = []
        for want, begin in zip(wanted, begins, strict=True):
            total, count = want - begin, 1
            while pools and pools[-1][0] / pools[-1][1] > total / count:
                more, members = pools.pop()
                total, count = total + more, count + members
            pools.append((total, count))
        means = [total / count for total, count in pools for _ in range(count)]
        for number, mean, begin in zip(row, means, begins, strict=True):
            self._x[number] = mean + begin
