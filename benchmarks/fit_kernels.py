"""Fits what profiles say of products to published measurements.

    python -m benchmarks.fit_kernels

prints, for each set of measurements, the constants of a device that its products tell: the achieved
fraction of the peak, and the rate at which a multiprocessor loads operands where small products
were measured too. Steps are those that the measurements can tell apart. The loss is the mean
absolute logarithm of predicted over measured.

Short bursts (XLA's table) run at full clock: of them only the loads go into a profile; the fraction
is what ``kernel_rows`` compares them at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from benchmarks.kernel_rows import Row, rows

EFFICIENCIES = tuple(step / 100 for step in range(60, 96))
LOADS = (50e9, 75e9, 100e9, 125e9, 150e9, 200e9)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Sets of one device at one clock, and whether they tell its loads."""

    device: str
    sets: tuple[str, ...]
    loads: bool = False


FITS = (
    Fit(device="A100", sets=("Vidur A100", "cookbook A100")),
    Fit(device="H100, full clock", sets=("XLA H100",), loads=True),
    Fit(device="H100", sets=("Vidur H100",)),
    Fit(device="B200, full clock", sets=("XLA B200",), loads=True),
)


def fitted(fit: Fit) -> tuple[float, float | None]:
    """Matmul efficiency, and bytes per second of a multiprocessor, with the least loss."""
    members = [row for row in rows() if row.named in fit.sets]
    loads = LOADS if fit.loads else (members[0].device.sm_load_bytes_per_s,)
    return min(
        ((efficiency, load) for efficiency in EFFICIENCIES for load in loads),
        key=lambda constants: loss(members, *constants),
    )


def loss(members: list[Row], efficiency: float, load: float | None) -> float:
    """Mean absolute logarithm of predicted over measured with these constants."""
    total = 0.0
    for row in members:
        device = replace(row.device, matmul_efficiency=efficiency, sm_load_bytes_per_s=load)
        total += abs(math.log(1 + replace(row, device=device).error))
    return total / len(members)


def table() -> str:
    """The fits, in Markdown."""
    lines = ["| device | fitted on | fraction of the peak | loads |", "|---|---|---|---|"]
    for fit in FITS:
        efficiency, load = fitted(fit)
        shown = f"{load / 1e9:.0f} GB/s" if load and fit.loads else ""
        lines.append(f"| {fit.device} | {', '.join(fit.sets)} | {efficiency:.2f} | {shown} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
