"""Published training steps as fits take them: setups, profiles and seconds of scored rows."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from autoplan.validation.predict import tuned_setup
from autoplan.validation.published.rows import IncompleteRowError, read_rows
from autoplan.validation.setups.configuration import configuration_of
from autoplan.validation.setups.setup import Setup
from autoplan.validation.step.step_time import step_of
from hardware_profiles.load import load
from hardware_profiles.spec import ClusterSpec

DATA = Path(__file__).parent / "data"
RUNS, SWEEPS = DATA / "training.csv", DATA / "training_bulk.csv"
NOTHING: Mapping[str, float] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One scored row: its set, setup, profile and seconds."""

    named: str
    setup: Setup
    cluster: ClusterSpec
    step_s: float


def measured(file: Path = RUNS) -> list[Measured]:
    """All scored rows of a file that can be priced."""
    found = []
    for row in read_rows(file).rows:
        if not (row.step_time_s and row.scored):
            continue
        try:
            configured = configuration_of(row)
        except IncompleteRowError:
            continue
        if configured.no_time is None:
            setup = tuned_setup(configured)
            cluster = load(setup.cluster)
            found.append(
                Measured(named=row.set, setup=setup, cluster=cluster, step_s=row.step_time_s)
            )
    return found


def errors(
    rows: Iterable[Measured],
    device: Mapping[str, float] = NOTHING,
    framework: Mapping[str, float] = NOTHING,
) -> list[float]:
    """Predicted over measured, less one, with these constants in the rows' device and framework."""
    return [_predicted_s(row, device, framework) / row.step_s - 1 for row in rows]


def _predicted_s(
    row: Measured, device: Mapping[str, float], framework: Mapping[str, float]
) -> float:
    cluster = replace(row.cluster, device=replace(row.cluster.device, **device))
    setup = replace(row.setup, framework=replace(row.setup.framework, **framework))
    return step_of(setup, cluster).step_s


def loss(
    rows: list[Measured],
    device: Mapping[str, float] = NOTHING,
    framework: Mapping[str, float] = NOTHING,
) -> float:
    """Mean |log(predicted / measured)|, sets weighted by the square root of their rows."""
    sizes = Counter(row.named for row in rows)
    weights = [1 / math.sqrt(sizes[row.named]) for row in rows]
    logs = (abs(math.log1p(error)) for error in errors(rows, device, framework))
    return sum(w * log for w, log in zip(weights, logs, strict=True)) / sum(weights)


def median_error(rows: Iterable[Measured], device: Mapping[str, float] = NOTHING) -> float:
    """Median of |predicted / measured - 1|."""
    return statistics.median(map(abs, errors(rows, device)))
