"""Seconds and memory of planning: ``python -m benchmarks.plan_speed``.

Every case is planned by fresh processes, one after the other, and the one that took the processor
the shortest is shown: seconds by the clock and of the processor, and the most memory held. The
processor's seconds are split into importing autoplan and PyTorch, loading the model, tracing it,
pricing what its operators and regions can be (cost), searching, and finding what the plan is shown
beside (others). Nothing is kept between processes but what Python compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date

REPEATS = 3
PHASES = ("import", "load", "trace", "cost", "search", "others")
_STARTS = {
    "loading": "load", "tracing": "trace", "searching": "search", "comparing": "others",
}  # fmt: skip
_ONE = "--one"


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What is planned."""

    model: str
    cluster: str
    nodes: int
    global_batch: int
    seq_len: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One process that planned.

    Attributes:
        gpus, gap: of the plan; None for the gap where nothing fits.
        wall_s, cpu_s: of the process, from its start to its end.
        memory_bytes: the most that it held.
        phases_s: seconds of the processor, by ``PHASES``.
    """

    gpus: int
    gap: float | None
    wall_s: float
    cpu_s: float
    memory_bytes: int
    phases_s: dict[str, float]


def _on(cluster: str, nodes: int, model: str, global_batch: int, seq_len: int) -> Case:
    return Case(
        model=model, cluster=cluster, nodes=nodes, global_batch=global_batch, seq_len=seq_len
    )


CASES = (
    _on("dgx-h100", 2048, "llama3-405b", 2048, 8192),
    _on("dgx-h100", 256, "llama3-405b", 2048, 8192),
    _on("dgx-h100", 128, "llama3-405b", 2048, 8192),
    _on("dgx-h100", 64, "llama3-405b", 2048, 8192),
    _on("dgx-a100-80g", 128, "gpt3-175b", 1536, 2048),
    _on("dgx-h100", 1, "t5-11b", 256, 512),
    _on("dgx-h100", 1, "llama3-8b", 64, 8192),
    _on("dgx-h100", 128, "llama3-8b", 2048, 8192),
    _on("dgx-h100", 2048, "llama3-8b", 2048, 8192),
)


def watch(owner: type, name: str, told: Callable[[float], None]) -> None:
    """Tells the processor's seconds of every call of a method, calls within its calls included."""
    method, depth = getattr(owner, name), 0

    def watched(*args: object) -> object:
        nonlocal depth
        depth, started_s = depth + 1, time.process_time()
        try:
            return method(*args)
        finally:
            depth -= 1
            if not depth:
                told(time.process_time() - started_s)

    setattr(owner, name, watched)


def plan_here(case: Case, planned_only: bool) -> dict[str, object]:
    """Plans in this process: seconds of the processor by phase, devices, and the gap."""
    from autoplan.cli.main import spare_collection

    spare_collection()
    import torch  # noqa: F401

    from autoplan import api
    from autoplan.errors import InfeasibleError
    from autoplan.search.pricing import Pricing
    from autoplan.search.regions.menu import ModeTables

    starts = {"import": 0.0}
    cost_s: dict[str, float] = dict.fromkeys(PHASES, 0.0)

    def count(seconds: float) -> None:
        cost_s[list(starts)[-1]] += seconds

    watch(Pricing, "microbatch", count)
    watch(ModeTables, "table", count)

    def note(_: float, what: str) -> None:
        phase = _STARTS.get(what.partition(" ")[0])
        if phase is not None:
            starts.setdefault(phase, time.process_time())

    try:
        gap = api.plan(**asdict(case), planned_only=planned_only, progress=note).search.gap
    except InfeasibleError:
        gap = None
    ends = [*list(starts.values())[1:], time.process_time()]
    spent = {name: end - start for (name, start), end in zip(starts.items(), ends, strict=True)}
    spent = {name: seconds - cost_s[name] for name, seconds in spent.items()}
    spent["cost"] = sum(cost_s.values())
    return {"phases_s": spent, "gap": gap}


def run(number: int, planned_only: bool) -> Run:
    """Plans a case of ``CASES`` in a fresh process."""
    command = [sys.executable, "-m", __spec__.name, _ONE, str(number)]
    if planned_only:
        command.append("--planned-only")
    started_s = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - started_s
    if process.returncode:
        raise SystemExit(f"planning {CASES[number].model} failed")
    from hardware_profiles.load import load

    case = CASES[number]
    return Run(
        gpus=case.nodes * load(case.cluster).gpus_per_node,
        wall_s=wall_s,
        cpu_s=used.ru_utime + used.ru_stime,
        memory_bytes=used.ru_maxrss * 1024,
        **json.loads(printed.splitlines()[-1]),
    )


def print_table(numbers: Sequence[int], repeats: int, planned_only: bool) -> None:
    """One line for each case."""
    print(f"{processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
          f"{date.today().isoformat()}")  # fmt: skip
    print(f"{'':12} {'':12} {'':>6} {'wall':>6} {'CPU':>6} {'memory':>6} | CPU s by phase")
    print(f"{'model':12} {'cluster':12} {'GPUs':>6} {'s':>6} {'s':>6} {'GiB':>6} | "
          f"{' '.join(f'{name:>6}' for name in PHASES)} | {'gap':>6}")  # fmt: skip
    for number in numbers:
        runs = [run(number, planned_only) for _ in range(repeats)]
        best, case = min(runs, key=lambda one: one.cpu_s), CASES[number]
        phases = " ".join(f"{best.phases_s.get(name, 0.0):6.2f}" for name in PHASES)
        gap = "none" if best.gap is None else f"{best.gap:.1%}"
        print(f"{case.model:12} {case.cluster:12} {best.gpus:6} {best.wall_s:6.2f} "
              f"{best.cpu_s:6.2f} {best.memory_bytes / 2**30:6.2f} | {phases} | {gap:>6}",
              flush=True)  # fmt: skip


def processor() -> str:
    """The name of this machine's processor."""
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds and memory of planning")
    parser.add_argument("--case", type=int, action="append", help="number of a case (repeatable)")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="processes for each case")
    parser.add_argument("--planned-only", action="store_true", help="plan what cannot run yet, too")
    parser.add_argument(_ONE, type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        print(json.dumps(plan_here(CASES[given.one], given.planned_only)))
        return
    numbers = given.case or range(len(CASES))
    print_table(numbers, given.repeats, given.planned_only)


if __name__ == "__main__":
    main()
