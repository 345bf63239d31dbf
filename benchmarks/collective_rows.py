"""Published measurements of collectives, as calls of ``collective_s``.

``data/collectives.csv`` has the figures as published, each with its source. Here each one gets the
cluster that it was measured on, its payload and its time, or the reason why it cannot be priced.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cost_models.collectives import collective_s
from hardware_profiles.load import load
from hardware_profiles.spec import ClusterSpec

DATA = Path(__file__).parent / "data" / "collectives.csv"
PEAK_BYTES = 64e9  # a figure called a peak, without its payload
GALVATRON_BYTES = 32 * 2**20  # its times by payload give these bandwidths at about 32 MiB
MANY_NODES = 64

_GALVATRON = "not stated (A100/A800-like)"
_JEAN_ZAY = "a range or a burst, without its payload and before the network was tuned"
_UNPRICED = {
    "PCIe5 node": "no profile has PCIe 5 between devices",
    "DGX H100 SHARP": "reduction in InfiniBand switches is not modelled",
    "V100-SXM2 (Jean Zay)": _JEAN_ZAY,
    "A100-80GB (Jean Zay, 4x OmniPath 100)": _JEAN_ZAY,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One measurement: arguments of ``collective_s``, the measured time, and its set.

    Attributes:
        named: the set's name, ``source: hardware, shape``.
        on: the cluster's name, with ``-4nic`` where four adapters serve its nodes.
    """

    named: str
    on: str
    kind: str
    nbytes: float
    ranks: int
    ranks_per_node: int
    measured_s: float

    def error(self, clusters: Mapping[str, ClusterSpec]) -> float:
        """Predicted over measured, less one."""
        cluster = clusters[self.on]
        seconds = collective_s(
            self.kind,  # type: ignore[arg-type]
            self.nbytes,
            self.ranks,
            self.ranks_per_node,
            cluster,
        )
        return seconds / self.measured_s - 1


# hardware as published, whether over several nodes -> set, cluster
_SETS = {
    ("A100-SXM4 (DGX-like)", False): ("ml-engineering A100", "dgx-a100-80g"),
    ("B200-SXM (AWS P6-B200)", False): ("ml-engineering B200, one node", "p6-b200"),
    ("B200-SXM (AWS P6-B200)", True): ("ml-engineering B200, four nodes", "p6-b200"),
    ("not stated", True): ("ml-engineering unnamed, four nodes", "dgx-a100-80g-4nic"),
    ("MI300X", False): ("ml-engineering MI300X", "mi300x-node"),
    ("PCIe4 node", False): ("peaks in one node", "a100-pcie-80g"),
    ("DGX V100 NVLink2", False): ("peaks in one node", "dgx-v100"),
    ("DGX A100 NVLink3", False): ("peaks in one node", "dgx-a100-80g"),
    ("DGX H100 NVLink4 ring", False): ("peaks in one node", "dgx-h100-ring"),
    ("DGX H100 NVLink4 SHARP", False): ("peaks in one node", "dgx-h100"),
    ("100GbE", True): ("peaks between nodes", "rtx4090-box-8nic"),
    ("200Gb IB", True): ("peaks between nodes", "dgx-a100-80g"),
    ("400Gb IB", True): ("peaks between nodes", "dgx-h100"),
    ("DGX A100 (8x200Gb)", True): ("peaks between nodes", "dgx-a100-80g"),
    ("DGX H100 (8x400Gb)", True): ("peaks between nodes", "dgx-h100"),
    ("A100 (vTrain testbed)", False): ("vTrain A100", "dgx-a100-80g"),
    ("V100 (vTrain testbed)", False): ("vTrain V100", "dgx-v100"),
    (_GALVATRON, False): ("Galvatron A100-like, one node", "dgx-a100-80g"),
    (_GALVATRON, True): ("Galvatron A100-like, two nodes", "dgx-a100-80g-4nic"),
}


def clusters() -> dict[str, ClusterSpec]:
    """The clusters of the rows: profiles, and variants whose adapters or algorithm differ."""
    names = {name.removesuffix("-4nic").removesuffix("-8nic") for _, name in _SETS.values()}
    found = {name: load(name) for name in sorted(names - {"dgx-h100-ring"})}
    h100, a100, box = found["dgx-h100"], found["dgx-a100-80g"], found["rtx4090-box"]
    ring = replace(h100.intra_node, in_network_reduction=False)
    return found | {
        "dgx-h100-ring": replace(h100, intra_node=ring),
        "dgx-a100-80g-4nic": replace(a100, nics_per_node=4),
        "rtx4090-box-8nic": replace(box, nics_per_node=8),
    }


def read(path: Path = DATA) -> tuple[list[Row], list[tuple[str, str]]]:
    """Rows that can be priced, and (hardware, reason) of those that cannot."""
    rows, unpriced = [], []
    with path.open(newline="") as file:
        for facts in csv.DictReader(file):
            if reason := _reason(facts):
                unpriced.append((facts["gpu"], reason))
            else:
                rows.append(_row(facts))
    return rows, unpriced


def by_set(rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Rows of each set, in the file's order."""
    for name in dict.fromkeys(row.named for row in rows):
        yield name, [row for row in rows if row.named == name]


def errors(rows: list[Row], on: Mapping[str, ClusterSpec]) -> list[float]:
    """Absolute errors of the rows, smallest first."""
    return sorted(abs(row.error(on)) for row in rows)


def table(rows: list[Row], on: Mapping[str, ClusterSpec]) -> str:
    """The errors of each set, in Markdown."""
    lines = ["| set | rows | median | p90 | largest |", "|---|---|---|---|---|"]
    for name, members in by_set(rows):
        found = errors(members, on)
        shown = (statistics.median(found), found[len(found) * 9 // 10], found[-1])
        cells = " | ".join(f"{100 * error:.1f} %" for error in shown)
        lines.append(f"| {name} | {len(members)} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    """Prints the errors of each set, and what could not be priced."""
    rows, unpriced = read()
    print(table(rows, clusters()))
    for hardware, reason in dict.fromkeys(unpriced):
        print(f"not priced: {hardware}: {reason}")


def _reason(facts: dict[str, str]) -> str | None:
    if facts["kind"] == "p2p" and int(facts["gpus"]) > 2:
        return "a pipeline of several messages, convention not stated"
    return _UNPRICED.get(facts["gpu"])


def _row(facts: dict[str, str]) -> Row:
    several = facts["nodes"] != "1"
    named, on = _SETS[facts["gpu"], several]
    ranks, per_node = _shape(facts, several)
    kind = _kind(facts)
    return Row(
        named="Galvatron A100-like, all-to-all" if kind == "all_to_all" else named,
        on=on,
        kind=kind,
        nbytes=_payload(facts),
        ranks=ranks,
        ranks_per_node=per_node,
        measured_s=_seconds(facts, kind, ranks),
    )


def _kind(facts: dict[str, str]) -> str:
    if facts["kind"] == "p2p":
        return "send_recv"
    return "all_to_all" if facts["collective"] == "all2all" else "all_reduce"


def _shape(facts: dict[str, str], several: bool) -> tuple[int, int]:
    if facts["nodes"] == "many":
        per_node = 8 if "DGX" in facts["gpu"] else 1
        return MANY_NODES * per_node, per_node
    ranks = int(facts["gpus"])
    if not several:
        return ranks, ranks
    if "consecutive" in facts["condition"]:
        return ranks, min(ranks, 8)
    return ranks, max(1, ranks // int(facts["nodes"]))


def _payload(facts: dict[str, str]) -> float:
    if facts["payload_bytes"]:
        return float(facts["payload_bytes"])
    return PEAK_BYTES if "peak" in facts["unit"] else GALVATRON_BYTES


def _seconds(facts: dict[str, str], kind: str, ranks: int) -> float:
    value = float(facts["value"])
    if facts["unit"] == "ms":
        return value * 1e-3
    traffic = _payload(facts) * (2 * (ranks - 1) / ranks if kind == "all_reduce" else 1)
    return traffic / (value * 1e9)


if __name__ == "__main__":
    main()
