"""Predicted against measured: ``python -m benchmarks.predicted_vs_measured --cluster my.toml``.

Small models are trained by plans over 1, 2 and 4 processes of this machine; their step time and
live bytes stand beside what the profile of the machine predicts. Nothing is fitted to them. The
profile is one of ``autoplan profile``; without ``--cluster`` every pass measures a quick one first,
since what a shared machine gives moves by a quarter within minutes.

Every pass measures all pairs one after the other; the pass whose error is in the middle of those
that other work disturbed least counts. Rows are kept in the file of ``--resume`` as they are made,
which later calls go on with: their pairs are not measured in turn with those of earlier ones, and
the limit of ``--seconds`` ends a call between two pairs. Ends with 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from autoplan.errors import AutoplanError
from autoplan.validation.scores import spearman
from benchmarks.predicted.pairs import PAIRS, Pair
from benchmarks.predicted.rows import Row, append, combined, read
from benchmarks.targets import are_bytes_met

MOST_LOAD = 0.05
"""Of the machine by other processes, in passes that count as undisturbed."""
MEDIAN_ERROR, LEAST_CORRELATION = 0.15, 0.9
_MIB = 2**20


def fill(
    path: Path,
    cluster_of: Callable[[int], str],
    pairs: Sequence[Pair],
    *,
    passes: int,
    steps: int,
    seconds_s: float,
) -> None:
    """Measures what the file lacks of ``passes`` undisturbed passes, until time is up.

    Args:
        cluster_of: the profile of a pass, asked for once where the pass has something to measure.
        steps: timed in each pass.
        seconds_s: after which no pair is begun.
    """
    from benchmarks.predicted.measure import measured

    end_s = time.monotonic() + seconds_s
    for number in range(passes):
        cluster = ""
        for pair in pairs:
            known = [row for row in read(path) if row.pair == pair.name]
            good = [row for row in known if row.other_load <= MOST_LOAD]
            if len(good) > number or len(known) > number + passes:
                continue
            if time.monotonic() > end_s:
                return
            cluster = cluster or cluster_of(number)
            row = measured(pair, cluster, steps)
            append(path, row)
            print(f"{line(row)}  other work {row.other_load:.0%}", file=sys.stderr, flush=True)


def line(row: Row) -> str:
    fullest = max(row.measured_bytes)
    return (
        f"{row.pair:34} {row.predicted_s * 1e3:8.1f} {row.measured_s * 1e3:8.1f} "
        f"{row.time_error:+8.1%} {max(row.predicted_bytes) / _MIB:8.1f} {fullest / _MIB:8.1f} "
        f"{row.bytes_error:+8.1%}"
    )


def print_scores(rows: Sequence[Row]) -> bool:
    """The table and its scores; whether all targets are met."""
    print(f"{'pair':34} {'step ms':>8} {'measured':>8} {'':8} {'MiB':>8} {'measured':>8}")
    for row in rows:
        print(line(row))
    median = statistics.median(abs(row.time_error) for row in rows)
    order = spearman([row.predicted_s for row in rows], [row.measured_s for row in rows])
    furthest = max(abs(row.bytes_error) for row in rows)
    under = max(-row.bytes_error for row in rows)
    loads = [row.other_load for row in rows]
    print(
        f"{len(rows)} pairs: step time {median:.1%} off in the median, rank correlation "
        f"{'none' if order is None else f'{order:.2f}'}; bytes {furthest:.1%} off at most, "
        f"{max(0.0, under):.1%} under at most; other work took {max(loads):.0%} at most"
    )
    return (
        median <= MEDIAN_ERROR
        and (order or 0.0) >= LEAST_CORRELATION
        and are_bytes_met([row.bytes_error for row in rows])
    )


def _quiet() -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")


def _profiled(path: Path) -> str:
    from benchmarks.quick_profile import quick_profile

    return quick_profile("cpu-gloo", path)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Predicted against measured on this machine")
    parser.add_argument("--cluster", help="profile of this machine; by default a pass makes one")
    parser.add_argument("--only", help="pairs whose name holds this")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="timed in each pass")
    parser.add_argument("--resume", type=Path, help="file of rows, gone on with or begun")
    parser.add_argument("--seconds", type=float, default=1e9, help="no pair is begun after these")
    given = parser.parse_args(arguments)
    _quiet()
    pairs = [pair for pair in PAIRS if given.only is None or given.only in pair.name]
    with tempfile.TemporaryDirectory() as folder:
        path = given.resume or Path(folder, "rows.jsonl")
        try:
            fill(
                path,
                lambda number: given.cluster or _profiled(Path(folder, f"pass-{number}.toml")),
                pairs,
                passes=given.passes,
                steps=given.steps,
                seconds_s=given.seconds,
            )
        except AutoplanError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        rows = combined(read(path), MOST_LOAD)
    order = [pair.name for pair in PAIRS]
    known = sorted(
        (row for row in rows if row.pair in order), key=lambda row: order.index(row.pair)
    )
    return 0 if known and print_scores(known) else 1


if __name__ == "__main__":
    sys.exit(main())
