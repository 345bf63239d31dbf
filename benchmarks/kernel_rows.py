"""Published measurements of products and attention, as calls of ``kernel_s``.

``data/kernels.csv`` has the figures as published, each with its source. ``python -m
benchmarks.kernel_rows`` prints the errors by set. What is compared is how times follow shapes: each
set ran at its own clock (XLA's are short bursts) and with its own attention kernel, so it gets the
fractions of the peak that it shows on large products (``fit_kernels``) or long sequences, and the
start of a kernel as the smallest products show it. Profiles have those of training. The best
products ever found are compared at the profile's fraction.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from cost_models.compute import kernel_s
from cost_models.work import FlashAttention, Gemm
from hardware_profiles.load import load
from hardware_profiles.spec import DeviceSpec

DATA = Path(__file__).parent / "data" / "kernels.csv"

_CLUSTERS = {
    "a100-sxm4-40gb": "p4d",
    "a100-sxm4-80gb": "dgx-a100-80g",
    "a100-pcie-80gb": "a100-pcie-80g",
    "h100-sxm5-80gb": "dgx-h100",
    "b200-sxm-180gb": "dgx-b200",
    "gb200-186gb": "gb200-nvl72",
    "mi300x-192gb": "mi300x-node",
}
_EVERYWHERE = {"launch_s": 5e-6, "memory_efficiency": 0.9}
_FRACTIONS = {
    "Vidur A100": {"matmul_efficiency": 0.77},
    "cookbook A100": {"matmul_efficiency": 0.77},
    "Vidur H100": {"matmul_efficiency": 0.73},
    "XLA H100": {"matmul_efficiency": 0.9},
    "XLA B200": {"matmul_efficiency": 0.76},
    "best found": {},
    "FlashAttention-2 A100": {"attention_forward_efficiency": 0.6},
    "FlashAttention-2 H100": {
        "attention_forward_efficiency": 0.37,
        "attention_backward_efficiency": 0.325,
    },
    "FlashAttention-3 H100": {
        "attention_forward_efficiency": 0.655,
        "attention_backward_efficiency": 0.57,
    },
    "cuDNN H100": {
        "attention_forward_efficiency": 0.61,
        "attention_backward_efficiency": 0.52,
    },
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One measurement: the kernel, the device it ran on, seconds, and its set."""

    named: str
    work: Gemm | FlashAttention
    device: DeviceSpec
    measured_s: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return kernel_s(self.work, self.device) / self.measured_s - 1


def rows() -> Iterator[Row]:
    """All measurements of ``data/kernels.csv``."""
    devices = {name: load(cluster).device for name, cluster in _CLUSTERS.items()}
    with DATA.open(newline="") as file:
        for figure in csv.DictReader(file):
            work = _work(figure)
            value = float(figure["value"])
            named = figure["set"]
            yield Row(
                named=named,
                work=work,
                device=replace(devices[figure["device"]], **_EVERYWHERE, **_FRACTIONS[named]),
                measured_s=value / 1e3 if figure["unit"] == "ms" else work.flops / value / 1e12,
            )


def _work(figure: dict[str, str]) -> Gemm | FlashAttention:
    if figure["kind"] == "gemm":
        m, n, k, batch = (int(figure[name]) for name in ("m", "n", "k", "batch"))
        return Gemm(m=m, n=n, k=k, batch=batch, dtype=figure["dtype"])
    heads, positions, width = (int(figure[name]) for name in ("heads", "queries", "head_dim"))
    return FlashAttention(
        batch=int(figure["batch"]),
        heads=heads,
        kv_heads=heads,
        queries=positions,
        keys=positions,
        head_dim=width,
        value_dim=width,
        dtype=figure["dtype"],
        causal=figure["causal"] == "1",
        backward=figure["backward"] == "1",
    )


def by_set() -> dict[str, list[float]]:
    """Errors of the rows of each set, in the file's order."""
    errors: dict[str, list[float]] = {}
    for row in rows():
        errors.setdefault(row.named, []).append(row.error)
    return errors


def table() -> str:
    """Rows, mean error, and median, 90th percentile and largest absolute error of each set.

    Sets that are compared at the profile's fraction are left out.
    """
    lines = ["| set | rows | mean | median | p90 | largest |", "|---|---|---|---|---|---|"]
    for named, errors in by_set().items():
        if not _FRACTIONS[named]:
            continue
        sizes = sorted(abs(error) for error in errors)
        shown = (statistics.median(sizes), sizes[int(0.9 * (len(sizes) - 1))], sizes[-1])
        cells = " | ".join(f"{100 * size:.1f} %" for size in shown)
        mean = f"{100 * statistics.mean(errors):+.1f} %"
        lines.append(f"| {named} | {len(sizes)} | {mean} | {cells} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
