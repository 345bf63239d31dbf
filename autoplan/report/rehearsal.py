"""What each rank would hold and do, on a terminal; ranks that do the same are shown once."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from autoplan.rehearsal import Part, Rehearsal
from autoplan.report import units
from autoplan.report.text import PIPE_WIDTH

_SHOWN = 12
"""Parameters that are listed of each part."""


def print_rehearsal(found: Rehearsal, console: Console | None = None) -> None:
    """Prints all parts, on stdout by default."""
    if console is None:
        console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
    mesh = " x ".join(f"{axis} {size}" for axis, size in found.mesh.items())
    console.print(Text(f"{mesh}; {found.orders}", style="bold"))
    for part in found.parts:
        console.print()
        for line in _lines(part):
            console.print(line)


def _lines(part: Part) -> Iterator[RenderableType]:
    stages = ", ".join(map(str, part.stages))
    yield Text(f"Ranks {_ranges(part.ranks)}: place {part.place} of pp, stages {stages}",
               style="bold cyan")  # fmt: skip
    if part.blocks:
        yield Text(f"  blocks {part.blocks[0]} to {part.blocks[-1]}, {len(part.blocks)} in all")
    yield Text(f"  a step: {', '.join(f'{n} {kind}' for kind, n in part.meetings.items())}")
    count = len(part.parameters)
    yield Text(f"  {count} parameters, {units.nbytes(part.nbytes)} on each rank, the first ones:")
    for held in part.parameters[:_SHOWN]:
        whole = "" if held.local_shape == held.shape else f" of {list(held.shape)}"
        yield Text(f"    {held.name}  {list(held.local_shape)}{whole} {held.dtype}")


def _ranges(ranks: tuple[int, ...]) -> str:
    """``0-7, 16-23``; only the first and the last range where there are many."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and found[-1][-1] == rank - 1:
            found[-1][-1] = rank
        else:
            found.append([rank, rank])
    shown = [f"{first}-{last}" if last > first else f"{first}" for first, last in found]
    return ", ".join(shown if len(shown) < 4 else (shown[0], "...", shown[-1]))
