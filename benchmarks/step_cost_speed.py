"""Milliseconds to predict one training step: ``python -m benchmarks.step_cost_speed``.

For published setups of Megatron-LM, up to 1T parameters on 64 stages with 512 microbatches, and
pipelines interleaved over hundreds of model chunks. ``first`` is the first call for a setup, where
no kernel of its shapes was priced before; ``again`` the median of further calls. Seconds of the
processor count, so that other work on the machine does not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from autoplan.validation.published.rows import IncompleteRowError, read_rows
from autoplan.validation.setups.configuration import configuration_of
from autoplan.validation.setups.setup import Setup
from autoplan.validation.step.step_time import step_of
from hardware_profiles.load import load

DATA = Path(__file__).parent / "data" / "training.csv"
SETS = (
    "megatron-sc21-table1",
    "korthikanti-table5",
    "megatron-core-h100-weak",
    "megatron-lm-examples-llama",
)
REPEATS = 9


def published_setups() -> Iterator[tuple[str, Setup]]:
    """Name and setup of each run; where a row leaves something open, the first choice."""
    for row in read_rows(DATA).rows:
        if row.set in SETS:
            try:
                yield row.id, configuration_of(row).choices[0]
            except IncompleteRowError:
                continue


def milliseconds(setup: Setup) -> tuple[float, float]:
    """First call, and the median of further ones."""
    cluster = load(setup.cluster)
    found = []
    for _ in range(1 + REPEATS):
        start_s = time.process_time()
        step_of(setup, cluster)
        found.append(1e3 * (time.process_time() - start_s))
    return found[0], statistics.median(found[1:])


def main() -> None:
    rows = [(name, setup, *milliseconds(setup)) for name, setup in published_setups()]
    print(f"{'run':20} {'stages':>6} {'chunks':>6} {'microbatches':>12} {'first':>8} {'again':>8}")
    for name, setup, first_ms, again_ms in rows:
        chunks = setup.pp * setup.virtual_stages
        print(
            f"{name:20} {setup.pp:6} {chunks:6} {setup.microbatches:12} {first_ms:5.1f} ms"
            f" {again_ms:5.1f} ms"
        )
    for what, column in (("first", 2), ("again", 3)):
        times = [row[column] for row in rows]
        print(
            f"{what}: median {statistics.median(times):.1f} ms, worst {max(times):.1f} ms"
            f" of {len(rows)}"
        )


if __name__ == "__main__":
    main()
