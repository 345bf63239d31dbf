"""Fits the constants of devices to published training steps.

    python -m benchmarks.fit_costs             # prints fitted values beside those of the files
    python -m benchmarks.fit_costs --write     # puts them into hardware_profiles/data/devices
    python -m benchmarks.fit_costs --hold-out  # errors of sets left out of their group's fit

Each group of devices has the few constants that only training tells (``GROUPS``): the clock that
power leaves to products, and to attention on a device with a lower limit; and the bandwidth that
frameworks' own kernels reach, told by A100's many runs and carried to H100. All others stay as
measurements of kernels give them. Sets of measurements weigh the square root of their rows, so that
large ones do not decide alone; the sweeps of ``training_bulk.csv`` are left to test the fit. The
loss is the mean absolute logarithm of predicted over measured; a pattern search descends from the
values of the files.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measured_steps import Measured, loss, measured, median_error
from benchmarks.profile_files import read_values, write_values
from cost_models.pattern_search import fit_constants

ROOT = Path(__file__).parents[1]
DEVICES = ROOT / "hardware_profiles" / "data" / "devices"
# No device is known to do better: attention in its papers' best figures.
HIGHEST = {"attention_forward_efficiency": 0.65, "attention_backward_efficiency": 0.6}


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Devices that share constants, and the sets of measurements that tell them.

    Attributes:
        files: names of device files; the first one's values are the start.
        names: what those devices are called in profiles.
    """

    files: tuple[str, ...]
    names: tuple[str, ...]
    sets: tuple[str, ...]
    constants: tuple[str, ...]


GROUPS = (
    Group(
        files=("a100-sxm4-80gb", "a100-sxm4-40gb"),
        names=("A100-SXM4-80GB", "A100-SXM4-40GB"),
        sets=(
            "vtrain-multi",
            "megatron-sc21-table1",
            "megatron-sc21-table2",
            "korthikanti-table5",
            "mt-nlg-530b",
            "flash-attn-gpt3",
        ),
        constants=("matmul_efficiency", "memory_efficiency"),
    ),
    Group(
        files=("h100-sxm5-80gb",),
        names=("H100-SXM5-80GB",),
        sets=(
            "megatron-core-h100-weak",
            "megatron-lm-examples-llama",
            "nemo-24.07-h100-fp8",
        ),
        constants=("matmul_efficiency", "float8_matmul_efficiency"),
    ),
    Group(
        files=("h100-sxm5-96gb",),
        names=("H100-SXM5-96GB",),
        sets=("torchtitan-h100-202412",),
        constants=(
            "matmul_efficiency",
            "float8_matmul_efficiency",
            "attention_forward_efficiency",
            "attention_backward_efficiency",
        ),
    ),
)


def fitted(group: Group, rows: list[Measured]) -> dict[str, float]:
    """The constants that minimise the loss, to three digits."""
    start = in_file(group)
    shares = {name: 1.0 for name in start if name.endswith("efficiency")}
    return fit_constants(
        lambda values: loss(rows, values),
        start,
        shares | HIGHEST,
        first_step=0.1,
        last_step=0.01,
        digits=3,
    )


def rows_of(group: Group, rows: list[Measured]) -> list[Measured]:
    """The rows that a group is fitted on."""
    return [
        row for row in rows if row.named in group.sets and row.cluster.device.name in group.names
    ]


def in_file(group: Group) -> dict[str, float]:
    """The constants as the group's first file has them."""
    return read_values(DEVICES / f"{group.files[0]}.toml", group.constants)


def write(group: Group, values: Mapping[str, float]) -> None:
    """Puts the constants into the group's files."""
    for file in group.files:
        write_values(DEVICES / f"{file}.toml", values)


def main() -> None:
    """Fits group after group and prints; may write, or leave sets out."""
    parser = argparse.ArgumentParser(description="Fit devices to published training steps.")
    parser.add_argument("--write", action="store_true", help="write into the profiles")
    parser.add_argument("--hold-out", action="store_true", help="fit without each set in turn")
    parser.add_argument("--device", help="only the group of this device file")
    wanted = parser.parse_args()
    rows = measured()
    for group in GROUPS:
        if wanted.device and wanted.device not in group.files:
            continue
        mine = rows_of(group, rows)
        if wanted.hold_out:
            _hold_out(group, mine)
            continue
        values = fitted(group, mine)
        for name, value in values.items():
            print(f"{group.files[0]}.{name} = {value:g}  (file: {in_file(group)[name]:g})")
        _show(mine, values)
        if wanted.write:
            write(group, values)


def _show(rows: list[Measured], values: Mapping[str, float]) -> None:
    for named in dict.fromkeys(row.named for row in rows):
        of_set = [row for row in rows if row.named == named]
        print(f"  {named}: median {100 * median_error(of_set, values):.1f} %, {len(of_set)} rows")


def _hold_out(group: Group, rows: list[Measured]) -> None:
    """The error of each set with the constants fitted on all, and on all but it."""
    everything = fitted(group, rows)
    names = list(dict.fromkeys(row.named for row in rows))
    for named in names if len(names) > 1 else ():
        left_out = [row for row in rows if row.named == named]
        without = fitted(group, [row for row in rows if row.named != named])
        fit, left = (100 * median_error(left_out, each) for each in (everything, without))
        print(f"{group.files[0]}, {named}: median {fit:.1f} % fitted, {left:.1f} % left out")


if __name__ == "__main__":
    main()
