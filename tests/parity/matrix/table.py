"""The matrix as Markdown: ways down, families across, the reasons of what is refused below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.parity.matrix.cells import Cell
from tests.parity.matrix.curves import RTOL, Curve

Matrix = Mapping[str, Mapping[str, Cell]]
"""By family, by way."""


def matrix_lines(matrix: Matrix) -> list[str]:
    """A row for each way; the largest relative difference of a cell, ``=`` after equal bits."""
    reasons = sorted({cell.refused for cells in matrix.values() for cell in cells.values()} - {""})
    ways = list(next(iter(matrix.values())))
    lines = [_row(["", *matrix]), _row(["---"] * (len(matrix) + 1))]
    lines += [
        _row([way, *(_text(cells[way], reasons) for cells in matrix.values())]) for way in ways
    ]
    return [*lines, "", *(f"- {_mark(i)}: {reason}" for i, reason in enumerate(reasons))]


def summary(matrix: Matrix) -> str:
    """How many cells are equal, refused and wrong, and the furthest of those that ran."""
    cells = [cell for own in matrix.values() for cell in own.values()]
    ran = [cell for cell in cells if not cell.refused]
    equal = sum(cell.ok for cell in ran)
    far = max((cell.largest / cell.allowed for cell in ran), default=0.0)
    double = max((c.largest for c in ran if c.allowed < RTOL), default=0.0)
    single = max((c.largest for c in ran if c.allowed >= RTOL), default=0.0)
    return (
        f"{len(cells)} cells: {equal} equal one device, {len(cells) - len(ran)} refused, "
        f"{len(ran) - equal} wrong; furthest {double:.1e} where all is float64, {single:.1e} where "
        f"some is float32, {far:.1g} of what rounding may make"
    )


def curve_lines(curves: Mapping[str, Curve]) -> list[str]:
    lines = [_row(["plan", "first loss", "last loss", "furthest"]), _row(["---"] * 4)]
    return lines + [
        _row([name, f"{c.losses[0]:.6f}", f"{c.losses[-1]:.6f}", f"{c.furthest:.1e}"])
        for name, c in curves.items()
    ]


def _text(cell: Cell, reasons: Sequence[str]) -> str:
    if cell.refused:
        return _mark(reasons.index(cell.refused))
    text = f"{cell.largest:.0e}" + ("" if cell.same_bits is None else "=" * cell.same_bits)
    return text if cell.ok else f"**{text} WRONG**"


def _mark(index: int) -> str:
    return f"refused {chr(ord('a') + index)}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
