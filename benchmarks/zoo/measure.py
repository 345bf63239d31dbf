"""Finds the parts of a model's records: each in a process of its own, so that none spares another.

Planning runs the command as a user does, from a cold start. Tracing and training are forked from
this process, which has imported what they need.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autoplan.verification.processes import run_ranks
from benchmarks.zoo.records import Part, Planned, Record, Traced, Trained

CLUSTER, GPUS_PER_NODE, SAMPLES_PER_GPU = "dgx-h100", 8, 8
DOES_NOT_FIT = 2
DEADLINE_S = 900.0


def found(model: str, part: Part) -> Record:
    """One part of a model; what fails is told by the record."""
    try:
        result = _FOUND[part](model)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return Record(model=model, part=part, failed=lines[-1])
    return Record(model=model, part=part, found=result)


def trained(model: str) -> dict[str, Any]:
    """Trains the twin of a model on processes."""
    from tests.parity.zoo_twins import run_twin

    cells = run_twin(model)
    ran = {way: cell for way, cell in cells.items() if not cell.refused}
    return asdict(
        Trained(
            like=model,
            equal=tuple(way for way, cell in ran.items() if cell.ok),
            wrong={way: cell.largest for way, cell in ran.items() if not cell.ok},
            refused={way: cell.refused for way, cell in cells.items() if cell.refused},
            furthest=max((cell.largest for cell in ran.values()), default=0.0),
        )
    )


def traced(model: str) -> dict[str, Any]:
    """Traces a model in a forked process."""
    (ending,) = run_ranks(lambda _: _trace(model), 1, deadline_s=DEADLINE_S, timeout_s=DEADLINE_S)
    if not ending.ok:
        raise RuntimeError(ending.error or "died or hung")
    return json.loads(ending.result)


def _trace(model: str) -> bytes:
    from autoplan import subject
    from autoplan.sharding.rules import opaque_operators
    from autoplan.trace.capture import capture
    from autoplan.trace.precision import COMPUTE_DTYPES

    case = subject.load(subject.describe(model, None, None))
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    graph = capture(
        case.model,
        case.example_inputs,
        loss_fn=case.loss_fn,
        dtype=COMPUTE_DTYPES["bf16"],
        global_batch=SAMPLES_PER_GPU * GPUS_PER_NODE,
    )
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    opaque = opaque_operators(graph)
    operators = sum(1 for _ in graph.of_kind("call"))
    result = Traced(
        operators=operators,
        known=operators - sum(len(each.calls) for each in opaque),
        opaque=len(opaque),
        cpu_s=cpu_s,
        wall_s=wall_s,
    )
    return json.dumps(asdict(result)).encode()


def planned(model: str, gpus: int) -> dict[str, Any]:
    """Plans a model by the command.

    Raises:
        RuntimeError: with the last line of what the command said, when it ends with an error.
    """
    command = [str(Path(sys.executable).with_name("autoplan")), "plan", model, "--json"]
    command += ["--cluster", CLUSTER, "--nodes", str(gpus // GPUS_PER_NODE)]
    command += ["--global-batch", str(SAMPLES_PER_GPU * gpus)]
    started_s, before_s = time.perf_counter(), _children_cpu_s()
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=DEADLINE_S)
    wall_s, cpu_s = time.perf_counter() - started_s, _children_cpu_s() - before_s
    load = os.getloadavg()[0]
    said = (ended.stderr.strip() or f"ended with {ended.returncode}").splitlines()[-1]
    if ended.returncode == DOES_NOT_FIT:
        return asdict(Planned(cpu_s=cpu_s, wall_s=wall_s, load=load, refused=said))
    if ended.returncode:
        raise RuntimeError(said)
    plan = json.loads(ended.stdout)
    return asdict(
        Planned(
            cpu_s=cpu_s,
            wall_s=wall_s,
            load=load,
            step_s=plan["estimate"]["step_s"],
            peak_bytes=plan["estimate"]["peak_memory_bytes"],
            gap=plan["search"]["gap"],
            shape=_shape(plan),
        )
    )


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _shape(plan: dict[str, Any]) -> str:
    axes = [f"{axis}{plan['mesh'][axis]}" for axis in ("pp", "dp", "tp") if plan["mesh"][axis] > 1]
    replicas = [f"in {plan['replicas']} replicas"] if plan["replicas"] > 1 else []
    zero = [f"ZeRO {plan['zero']}"] if plan["zero"] else []
    return ", ".join([" x ".join(axes), *replicas, *zero])


_FOUND: dict[Part, Callable[[str], dict[str, Any]]] = {
    "trace": traced,
    "plan 8": lambda model: planned(model, 8),
    "plan 64": lambda model: planned(model, 64),
    "parity": trained,
}
