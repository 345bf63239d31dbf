"""Contestants of one number of ranks, measured in turn in the same processes.

Each round runs every contestant once, in an order of its own, so that whatever else the machine
does meets all of them alike; ratios are of steps of the same round. A step is forward, backward,
messages and AdamW, from all ranks being ready to all being done.
"""

from __future__ import annotations

import gc
import json
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from autoplan.runtime.live_bytes import LiveBytes
from autoplan.verification import processes
from benchmarks.step_time.model import LEARNING_RATE
from benchmarks.step_time.recipes import Training

_DEADLINE_S = 600
_WARM_UP = 3
_RESAMPLES = 2000

Make = Callable[[], Training]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """Of one contestant: the loss of its first step, seconds by round, and bytes of a step."""

    loss: float
    step_s: tuple[float, ...]
    peak_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """Median of the ratios of paired steps, and its interval of 95 % by resampling rounds."""

    median: float
    low: float
    high: float


def ratio(ours: Figures, theirs: Figures) -> Ratio:
    """How many times as long our steps take as theirs."""
    ratios = np.array(ours.step_s) / np.array(theirs.step_s)
    draws = np.random.default_rng(0).choice(ratios, (_RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(draws, axis=1), (2.5, 97.5))
    return Ratio(median=float(np.median(ratios)), low=float(low), high=float(high))


def measured(makers: Mapping[str, Make], ranks: int, rounds: int) -> dict[str, Figures]:
    """Figures of every contestant, seconds of the slowest rank and bytes of the fullest.

    Raises:
        RuntimeError: with what a rank raised.
    """
    endings = processes.run_ranks(lambda _: _on_rank(makers, rounds), ranks, deadline_s=_DEADLINE_S)
    for rank, ending in enumerate(endings):
        if not ending.ok:
            raise RuntimeError(f"rank {rank} of {ranks}: {ending.error or 'died or hung'}")
    found = [json.loads(ending.result) for ending in endings]
    return {
        name: Figures(
            loss=found[0][name]["loss"],
            step_s=tuple(np.max([own[name]["step_s"] for own in found], axis=0)),
            peak_bytes=max(own[name]["peak_bytes"] for own in found),
        )
        for name in makers
    }


def _on_rank(makers: Mapping[str, Make], rounds: int) -> bytes:
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    peaks = {name: _peak_bytes(make) for name, make in makers.items()}
    steps = {name: _whole_step(make()) for name, make in makers.items()}
    losses = {name: step() for name, step in steps.items()}
    for step in steps.values():
        for _ in range(_WARM_UP):
            step()
    gc.collect()
    gc.disable()
    seconds = _rounds(steps, rounds)
    return json.dumps(
        {
            name: {"loss": losses[name], "step_s": seconds[name], "peak_bytes": peaks[name]}
            for name in makers
        }
    ).encode()


def _rounds(steps: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    order: Sequence[str] = list(steps)
    for number in range(rounds):
        for name in random.Random(number).sample(order, len(order)):
            dist.barrier()
            started_s = time.perf_counter()
            steps[name]()
            dist.barrier()
            seconds[name].append(time.perf_counter() - started_s)
    return seconds


def _whole_step(training: Training) -> Callable[[], float]:
    """A step with its optimizer's; returns the loss."""
    optimizer = torch.optim.AdamW(training.parameters, lr=LEARNING_RATE)

    def step() -> float:
        loss = training.step()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss)

    return step


def _peak_bytes(make: Make) -> int:
    """Of a step behind the first, which makes the optimizer's state."""
    with LiveBytes() as live:
        step = _whole_step(make())
        step()
        gc.collect()
        live.restart()
        step()
    return live.peak_bytes
