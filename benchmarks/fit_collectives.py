"""Fits the constants of links to published measurements of collectives.

    python -m benchmarks.fit_collectives            # prints fitted values beside those of the files
    python -m benchmarks.fit_collectives --write    # puts them into hardware_profiles/data/links
    python -m benchmarks.fit_collectives --hold-out # errors of sets left out of their link's fit
    python -m benchmarks.fit_collectives --table    # fitted constants of the files, for docs

Each link has the constants that its measurements can tell, listed in ``FITS``; all others stay as
their files say. The loss is the mean absolute logarithm of predicted over measured, so that a few
cold runs do not decide. A pattern search over the logarithms of the constants minimises it, from
fixed starts and with fixed random numbers: it gives the same values each time. Links without
measurements of their own take constants over from a like link (``CARRIED``).

The launch of the protocol for large messages comes out large where the rate still grows at hundreds
of MiB, as on A100: it is the size where the full rate pays, more than a time that anything waits.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.collective_rows import Row, clusters, errors, read
from benchmarks.profile_files import read_values, write_values
from cost_models.pattern_search import pattern_search
from hardware_profiles.changed import with_constant
from hardware_profiles.spec import ClusterSpec

LINKS = Path(__file__).parents[1] / "hardware_profiles" / "data" / "links"
SEED, RESTARTS = 0, 4
_TOPS = {"ll": 4 / 8, "ll128": 120 / 128}  # payload in what these protocols send
_PARTS = ("launch_s", "latency_s", "efficiency")


def _protocol(name: str, *values: float) -> dict[str, float]:
    return {f"protocols.{name}.{part}": value for part, value in zip(_PARTS, values, strict=True)}


_LARGE = dict(zip(_PARTS, (60e-6, 3e-6, 0.8), strict=True))
_SMALL = _protocol("ll", 30e-6, 1e-6, 0.1) | _protocol("ll128", 40e-6, 2e-6, 0.6)
_LAUNCHES = tuple(name for name in _SMALL if name.endswith("launch_s"))
_LATENCIES = tuple(name for name in _SMALL if name.endswith("latency_s"))
_RATES = tuple(name for name in _SMALL if name.endswith("efficiency"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Constants of one tier's link with the values to start from, and the sets that tell them."""

    link: str
    tier: str
    sets: tuple[str, ...]
    constants: Mapping[str, float]


FITS = (
    Fit(
        link="nvlink3",
        tier="intra_node",
        sets=(
            "ml-engineering A100",
            "vTrain A100",
            "Galvatron A100-like, one node",
            "Galvatron A100-like, all-to-all",
        ),
        constants={**_LARGE, **_SMALL, "p2p_launch_s": 80e-6, "p2p_efficiency": 0.6},
    ),
    Fit(
        link="nvlink2-cube-mesh",
        tier="intra_node",
        sets=("vTrain V100",),
        constants={
            **_LARGE,
            **_SMALL,
            **{f"group_share.{ranks}": (ranks - 1) / 7 for ranks in range(2, 8)},
        },
    ),
    Fit(
        link="nvlink5-sharp",
        tier="intra_node",
        sets=("ml-engineering B200, one node",),
        constants={
            "launch_s": 90e-6,
            "in_network_efficiency": 0.6,
            **{name: _SMALL[name] for name in (*_LAUNCHES, *_RATES)},
        },
    ),
    Fit(
        link="xgmi-mi300x",
        tier="intra_node",
        sets=("ml-engineering MI300X",),
        constants={"efficiency": 0.7},
    ),
    Fit(
        link="ib-hdr200",
        tier="inter_node",
        sets=("ml-engineering unnamed, four nodes",),
        constants={
            "efficiency": 0.9,
            **dict(zip(_LATENCIES, (5e-6, 7e-6), strict=True)),
            **dict(zip(_RATES, (0.3, 0.7), strict=True)),
        },
    ),
    Fit(
        link="efa400",
        tier="inter_node",
        sets=("ml-engineering B200, four nodes",),
        constants={
            "launch_s": 400e-6,
            "efficiency": 0.95,
            _LAUNCHES[1]: 250e-6,
            _RATES[1]: 0.5,
        },
    ),
)

# link that takes over <- link that was measured, constants
CARRIED = (
    ("nvlink4-sharp", "nvlink3", ("latency_s", *_LATENCIES, "p2p_launch_s", "p2p_efficiency")),
    ("nvlink5-sharp", "nvlink3", ("latency_s", *_LATENCIES, "p2p_launch_s")),
    ("ib-hdr200", "nvlink3", _LAUNCHES),
    ("nvlink4-sharp", "nvlink5-sharp", ("launch_s", *_LAUNCHES, *_RATES)),
    ("ib-ndr400", "nvlink3", _LAUNCHES),
    ("ib-ndr400", "ib-hdr200", (*_LATENCIES, *_RATES)),
    ("efa100", "efa400", ("launch_s", _LAUNCHES[1], _RATES[1])),
)


def loss(
    fit: Fit, values: Mapping[str, float], rows: list[Row], on: Mapping[str, ClusterSpec]
) -> float:
    """Mean |log(predicted / measured)| of the rows with these constants in the fitted link."""
    changed = {name: _with_link(cluster, fit.tier, values) for name, cluster in on.items()}
    return sum(abs(math.log1p(row.error(changed))) for row in rows) / len(rows)


def _with_link(cluster: ClusterSpec, tier: str, values: Mapping[str, float]) -> ClusterSpec:
    link = getattr(cluster, tier)
    for name, value in values.items():
        link = with_constant(link, name, value)
    return replace(cluster, **{tier: link})


def fitted(fit: Fit, rows: list[Row], on: Mapping[str, ClusterSpec]) -> dict[str, float]:
    """The constants that minimise the loss, to three digits."""
    mine = [row for row in rows if row.named in fit.sets]
    used = {row.on: on[row.on] for row in mine}
    names = tuple(fit.constants)
    start = np.log(list(fit.constants.values()))
    top = np.log([_highest(name) for name in names])

    def objective(point: np.ndarray) -> float:
        values = dict(zip(names, np.exp(point).tolist(), strict=True))
        return loss(fit, values, mine, used) if _large_is_fastest(values) else math.inf

    random = np.random.default_rng(SEED)
    starts = [start] + [start + random.normal(0, 0.3, len(start)) for _ in range(RESTARTS)]
    found = [pattern_search(objective, np.minimum(point, top), top, random) for point in starts]
    best = min(found, key=objective)
    return {
        name: float(f"{value:.3g}")
        for name, value in zip(names, np.exp(best).tolist(), strict=True)
    }


def _large_is_fastest(values: Mapping[str, float]) -> bool:
    large = values.get("efficiency", 1.0)
    small = [v for name, v in values.items() if name.startswith("protocols") and "eff" in name]
    return all(value <= large for value in small)


def _highest(name: str) -> float:
    if name.endswith("_s"):
        return math.inf
    return _TOPS[name.split(".")[1]] if name.startswith("protocols") else 1.0


def write(link: str, values: Mapping[str, float]) -> None:
    """Puts the constants into the link's file."""
    write_values(LINKS / f"{link}.toml", values)


def in_file(link: str, names: Iterable[str]) -> dict[str, float]:
    """The constants as the link's file has them."""
    return read_values(LINKS / f"{link}.toml", names)


def table() -> str:
    """The fitted constants of the files, in Markdown."""
    lines = ["| link | constant | value | fitted on |", "|---|---|---|---|"]
    for fit in FITS:
        sets = ", ".join(fit.sets)
        for name, value in in_file(fit.link, fit.constants).items():
            lines.append(f"| {fit.link} | {name} | {value:g} | {sets} |")
    return "\n".join(lines)


def main() -> None:
    """Fits link after link, since those between nodes rest on those inside; prints, may write."""
    parser = argparse.ArgumentParser(description="Fit links to published collectives.")
    parser.add_argument("--write", action="store_true", help="write into the profiles")
    parser.add_argument("--hold-out", action="store_true", help="fit without each set in turn")
    parser.add_argument("--table", action="store_true", help="list the constants of the files")
    wanted = parser.parse_args()
    if wanted.table:
        print(table())
        return
    rows, _ = read()
    if wanted.hold_out:
        for fit in FITS:
            _hold_out(fit, rows)
        return
    for fit in FITS:
        values = fitted(fit, rows, clusters())
        for name, value in values.items():
            print(f"{fit.link}.{name} = {value:g}")
        if wanted.write:
            write(fit.link, values)
            _carry(fit.link, values)


def _hold_out(fit: Fit, rows: list[Row]) -> None:
    on = clusters()
    reductions = [named for named in fit.sets if "all-to-all" not in named]
    for named in reductions if len(reductions) > 1 else ():
        rest = tuple(other for other in fit.sets if other != named)
        values = fitted(replace(fit, sets=rest), rows, on)
        left_out = [row for row in rows if row.named == named]
        changed = {row.on: _with_link(on[row.on], fit.tier, values) for row in left_out}
        median = statistics.median(errors(left_out, changed))
        print(f"{named}: median {100 * median:.1f} % when left out of {fit.link}")


def _carry(source: str, values: Mapping[str, float]) -> None:
    for target, origin, names in CARRIED:
        if origin == source:
            write(target, {name: values[name] for name in names if name in values})


if __name__ == "__main__":
    main()
