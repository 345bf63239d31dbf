"""``python -m benchmarks.device_check``: training on one GPU beside two predictions, in 8 minutes.

Predictions are of the profile that comes with autoplan for the GPU, and of one measured first
(quick). Step time, the most bytes allocated in a step, and for two settings the largest batch that
fits are printed as Markdown; ``--write`` adds them to a file. Ends with 1 where the measured
profile misses a target: step time 8 % in the median, bytes 5 % each and never 3 % under.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import torch
import torch.distributed as dist

from autoplan import launch
from benchmarks.device_check.check import Checked, check
from benchmarks.device_check.on_gpu import Gpu
from benchmarks.device_check.settings import LARGEST, SETTINGS
from benchmarks.device_check.table import lines
from benchmarks.quick_profile import quick_profile

LIMIT_S = 300.0
"""Of what is begun, besides the profile; the last one begun ends within the 8 minutes."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Training on one GPU beside its prediction")
    parser.add_argument("--write", type=Path, help="file that the outcome is added to")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing is checked", file=sys.stderr)
        return 0
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "nccl", init_method=f"file://{folder}/store", rank=0, world_size=1,
            device_id=torch.device("cuda", 0),
        )  # fmt: skip
        try:
            found = _checked(Path(folder))
        finally:
            dist.destroy_process_group()
    title = (
        f"## {torch.cuda.get_device_name()}, {datetime.now(UTC).date()}, torch {torch.__version__}"
    )
    text = "\n".join((title, "", *lines(found))) + "\n"
    print(text)
    if given.write is not None:
        with given.write.open("a", encoding="utf-8") as file:
            file.write(f"\n{text}")
    return 0 if found.is_met(len(found.profiles) - 1) else 1


def _checked(folder: Path) -> Checked:
    shipped = launch.shipped_cluster()
    profiles = (shipped, quick_profile(shipped, folder / "measured.toml"))
    gpu = Gpu(folder, torch.device("cuda", 0))
    return check(gpu, profiles, SETTINGS, LARGEST, limit_s=LIMIT_S, tell=_tell)


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
