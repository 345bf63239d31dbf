"""The same question gives the same plan file, byte for byte, whatever process answers it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from autoplan import plan_io
from autoplan.job import Pins
from autoplan.search.planner import plan_job
from tests.unit.search_graphs import gated_mlp, job, small_cluster

QUESTIONS = {
    "without a pipeline": {"pins": Pins()},
    "with a pipeline": {"pins": Pins(pp=2)},
    "all that can be planned": {"planned_only": True},
}


def answers() -> str:
    """The plan files of all questions, where memory is short."""
    graph, cluster = gated_mlp(4, width=128, hidden=512, tokens=512), small_cluster()
    found = []
    for asked in QUESTIONS.values():
        plenty = replace(job(gpus=4, batch=16), **asked)
        most = plan_job(graph, plenty, cluster).estimate.peak_memory_bytes
        short = replace(plenty, memory_limit_bytes=int(0.7 * most))
        found.append(plan_io.to_json(plan_job(graph, short, cluster)))
    return "\0".join(found)


def answered(seed: int, threads: int) -> str:
    """The answers of a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", f"from {__name__} import answers; print(answers(), end='')"],
        env={**os.environ, "PYTHONHASHSEED": str(seed), "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        check=True,
        text=True,
    ).stdout


def test_two_processes_give_the_same() -> None:
    found = {answered(seed, threads=seed) for seed in (1, 2)}
    assert len(found) == 1
    assert found.pop().count('"step_s"') >= len(QUESTIONS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_processes_give_the_same() -> None:
    found = {
        answered(seed, threads) for seed in range(5) for threads in (1, 2) for _ in ("once", "more")
    }
    assert len(found) == 1
