"""How many figures the sweep over single nodes holds: ``python -m benchmarks.sweep_structure``.

Its step times without a pipeline are sums, for each hidden size, ``tp`` and microbatch,

    m L a + m b + L c + d        (m microbatches, L layers; a, b, c, d fitted by least squares),

whatever the number of data-parallel ranks, so that all rows with the same three sizes share one
layer time ``a``. Runs of their own would scatter about such a sum; what is left here is printed
beside ``a``. The order of configurations in the sweep is the order of these few layer times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autoplan.validation.published.rows import MeasuredRow, read_rows
from autoplan.validation.setups.configuration import configuration_of

DATA = Path(__file__).parent / "data" / "training_bulk.csv"
SET = "vtrain-single"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """What rows with one layer time have in common."""

    hidden: int
    tp: int
    microbatch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTime:
    """A layer's seconds for one microbatch, from some rows.

    Attributes:
        residual: median over the rows of what the sum leaves, relative to the step.
    """

    rows: int
    layer_s: float
    residual: float


def layer_times(rows: Iterable[MeasuredRow]) -> Mapping[Sizes, LayerTime]:
    """The layer times of rows without a pipeline that vary layers and microbatches."""
    alike: dict[Sizes, list[tuple[int, int, float]]] = defaultdict(list)
    for row in rows:
        if row.set == SET and row.pp == 1 and row.step_time_s is not None:
            setup = configuration_of(row).choices[0]
            model = setup.model
            sizes = Sizes(hidden=model.hidden, tp=setup.tp, microbatch=setup.microbatch)
            alike[sizes].append((setup.microbatches, model.layers, row.step_time_s))
    return {
        sizes: _fitted(found)
        for sizes, found in alike.items()
        if min(len({each[k] for each in found}) for k in (0, 1)) > 1
    }


def _fitted(found: list[tuple[int, int, float]]) -> LayerTime:
    counts = np.array([(m * layers, m, layers, 1) for m, layers, _ in found], dtype=float)
    measured = np.array([step_s for _, _, step_s in found])
    terms = np.linalg.lstsq(counts, measured, rcond=None)[0]
    left = np.abs(counts @ terms / measured - 1)
    return LayerTime(rows=len(found), layer_s=float(terms[0]), residual=float(np.median(left)))


def main() -> None:
    found = layer_times(read_rows(DATA).rows)
    print(f"{'hidden':>6} {'tp':>3} {'microbatch':>10} {'rows':>5} {'layer':>8} {'left':>7}")
    for sizes, time in sorted(found.items(), key=lambda each: str(each[0])):
        print(
            f"{sizes.hidden:6} {sizes.tp:3} {sizes.microbatch:10} {time.rows:5}"
            f" {1e3 * time.layer_s:5.2f} ms {100 * time.residual:5.2f} %"
        )


if __name__ == "__main__":
    main()
