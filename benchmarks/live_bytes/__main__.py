"""``python -m benchmarks.live_bytes``: live bytes of ranks of large plans, beside the estimate.

Plans of 1,024 GPUs are made under pins; their first, a middle and the last rank are built and take
a whole step with AdamW on a fake process group, on tensors without values. Printed are GiB by kind,
as estimated and as counted, and the ratio of their sums. Workspace and context of the device are in
neither. Ends with 1 where a ratio is further from 1 than 5 %.
"""

from __future__ import annotations

import argparse
import logging

import torch

from benchmarks.live_bytes.compare import Compared, compared
from benchmarks.live_bytes.plans import CASES, traced

_TOLERANCE = 0.05
_GIB = 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description="Live bytes of ranks of large plans")
    parser.add_argument("--only", nargs="+", choices=tuple(CASES), default=list(CASES))
    given = parser.parse_args()
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    ratios = []
    for name in given.only:
        print(f"{name}: {CASES[name].words}", flush=True)
        plan = CASES[name].plan()
        model, graph = traced(plan)
        for found in compared(plan, model, graph, CASES[name].ranks):
            _print(found)
            ratios.append(found.ratio)
    if max(abs(ratio - 1) for ratio in ratios) > _TOLERANCE:
        raise SystemExit("live bytes and the estimate differ by more than 5 %")


def _print(found: Compared) -> None:
    print(f"  rank {found.rank}: counted / estimated {found.ratio:.3f}")
    for kind, (estimated, counted) in found.by_kind.items():
        print(f"    {kind:22} {estimated / _GIB:8.3f} {counted / _GIB:8.3f}", flush=True)


if __name__ == "__main__":
    main()
