"""What verifying a plan showed: a row for each kind of tensor, then what is wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from autoplan.report.tables import add_figures, plain_table
from autoplan.report.text import PIPE_WIDTH
from autoplan.verdict import Difference, Verification

_KINDS = {
    "loss": "loss",
    "gradient": "gradients",
    "norm": "norm of all gradients",
    "buffer": "buffers after the step",
    "sgd": "weights after a step of SGD",
    "adam": "weights after a step of Adam",
}
_SHOWN = 8
"""Wrong tensors that are named, of each kind: those that the backward comes to first."""


def print_verification(found: Verification, console: Console | None = None) -> None:
    """Prints the outcome, on stdout by default."""
    if console is None:
        console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
    for part in _parts(found):
        console.print(part)


def _parts(found: Verification) -> Iterator[RenderableType]:
    yield Text(f"{found.ranks} ranks against one device", style="bold")
    if found.orders:
        yield Text(f"Messages of the whole plan: {found.orders}")
    if found.cuts:
        yield Text(f"Cut down to run here: {', '.join(found.cuts)}")
    yield Text()
    if found.fault is not None:
        yield Text(f"It did not run to its end: {found.fault}", style="bold red")
        return
    yield _table(found.differences)
    yield Text()
    yield from _wrong(found)
    if found.ok:
        precision = f"what rounding of {found.precision} explains"
        yield Text(f"Equal, within {precision}.", style="bold green")


def _table(differences: Sequence[Difference]) -> Table:
    table = plain_table()
    table.add_column("what", no_wrap=True)
    add_figures(table, "tensors", "largest difference", "allowed there")
    table.add_column("")
    for kind, words in _KINDS.items():
        own = [difference for difference in differences if difference.kind == kind]
        if not own:
            continue
        worst = max(own, key=_excess)
        table.add_row(
            words,
            str(len(own)),
            f"{worst.largest:.1e}",
            f"{worst.allowed:.1e}",
            Text("ok", style="green") if worst.ok else Text("differs", style="bold red"),
        )
    return table


def _excess(difference: Difference) -> float:
    """How many times the allowed difference it is."""
    if difference.allowed == 0:
        return float("inf") if difference.largest else 0.0
    return difference.largest / difference.allowed


def _wrong(found: Verification) -> Iterator[Text]:
    for kind, words in _KINDS.items():
        wrong = [d for d in found.differences if d.kind == kind and d.name and not d.ok]
        for difference in wrong[: -_SHOWN - 1 : -1]:
            yield Text(
                f"{words}: {difference.name} is off by {difference.largest:.1e}, "
                f"allowed {difference.allowed:.1e}",
                style="red",
            )
        if len(wrong) > _SHOWN:
            yield Text(f"{words}: {len(wrong) - _SHOWN} more", style="red")
    suspect = found.suspect
    if suspect is not None:
        yield Text(
            f"The backward came first to {suspect.name}, read by {suspect.reader}: look there, or "
            "at what follows it in the forward.",
            style="bold red",
        )
