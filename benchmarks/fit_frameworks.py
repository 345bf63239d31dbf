"""Fits the constants of frameworks to published training steps, and prints them beside the code's.

    python -m benchmarks.fit_frameworks

Few habits of a framework are known only by what they cost
(``autoplan/validation/setups/setup.py``). Each is fitted on the runs that show it, with the devices
as their files say; a pattern search over the logarithms descends from the values of the code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.measured_steps import RUNS, SWEEPS, Measured, errors, loss, measured
from cost_models.pattern_search import fit_constants

EVERY = 6  # rows of a sweep


@dataclass(frozen=True, kw_only=True, slots=True)
class Habit:
    """Constants of one framework, and the rows that tell them."""

    constants: tuple[str, ...]
    file: Path
    named: str
    shows: Callable[[Measured], bool]


HABITS = (
    Habit(
        constants=("host_s",),
        file=SWEEPS,
        named="vtrain-single",
        shows=lambda row: True,
    ),
    Habit(
        constants=("ring_step_s", "ring_adapters"),
        file=RUNS,
        named="megatron-sc21-table2",
        shows=lambda row: row.setup.framework.gathers_in_one_ring,
    ),
    Habit(
        constants=("split_attention_share",),
        file=RUNS,
        named="torchtitan-h100-202412",
        shows=lambda row: row.setup.cp > 1,
    ),
)


def rows_of(habit: Habit) -> list[Measured]:
    """The rows that show a habit; of a sweep some."""
    rows = [row for row in measured(habit.file) if row.named == habit.named and habit.shows(row)]
    return rows[::EVERY] if habit.file == SWEEPS else rows


def fitted(habit: Habit, rows: list[Measured]) -> dict[str, float]:
    """The constants that minimise the loss, to two digits."""
    framework = rows[0].setup.framework
    return fit_constants(
        lambda values: loss(rows, framework=values),
        {name: getattr(framework, name) for name in habit.constants},
        {},
        first_step=0.2,
        last_step=0.01,
        digits=2,
    )


def main() -> None:
    """Fits habit after habit."""
    for habit in HABITS:
        rows = rows_of(habit)
        framework = rows[0].setup.framework
        values = fitted(habit, rows)
        median = np.median(np.abs(errors(rows, framework=values)))
        for name, value in values.items():
            print(
                f"{framework.name}.{name} = {value:g}  (code: {getattr(framework, name):g});"
                f" median {100 * median:.1f} % on {len(rows)} rows of {habit.named}"
            )


if __name__ == "__main__":
    main()
