"""What was measured of a pair in one pass, kept as lines of JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One pair in one pass.

    Attributes:
        cluster: name of the profile that predicted.
        other_load: share of the machine that other processes took.
        predicted_s, measured_s: of a step, in the median; ``low_s`` and ``high_s`` are quartiles.
        predicted_bytes, measured_bytes: at the worst moment, by rank, without what a process holds
            before it has tensors.
    """

    pair: str
    cluster: str
    other_load: float
    predicted_s: float
    measured_s: float
    low_s: float
    high_s: float
    predicted_bytes: tuple[int, ...]
    measured_bytes: tuple[int, ...]

    @property
    def bytes_error(self) -> float:
        """Predicted over measured less 1, of the rank where it is farthest off."""
        pairs = zip(self.predicted_bytes, self.measured_bytes, strict=True)
        return max((p / m - 1 for p, m in pairs), key=abs)

    @property
    def time_error(self) -> float:
        return self.predicted_s / self.measured_s - 1


def read(path: Path) -> list[Row]:
    """All rows of a file; none where there is no file yet."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [_row(json.loads(line)) for line in lines]


def append(path: Path, row: Row) -> None:
    """Writes a row at once, so that nothing is lost when the process ends."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def combined(rows: Iterable[Row], most_load: float) -> list[Row]:
    """One row for each pair: the pass whose time error is the median of those that other work
    disturbed least: all with at most this load, or the one with the least."""
    of_pair: dict[str, list[Row]] = {}
    for row in rows:
        of_pair.setdefault(row.pair, []).append(row)
    return [_middle(found, most_load) for found in of_pair.values()]


def _middle(found: Sequence[Row], most_load: float) -> Row:
    least = min(row.other_load for row in found)
    kept = [row for row in found if row.other_load <= max(most_load, least)]
    middle = statistics.median_low([row.time_error for row in kept])
    return next(row for row in kept if row.time_error == middle)


def _row(found: dict) -> Row:
    for name in ("predicted_bytes", "measured_bytes"):
        found[name] = tuple(found[name])
    return Row(**found)
