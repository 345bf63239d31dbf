"""Measures training steps of a parallel module: seconds and bytes of every rank, on every rank.

Steps are those of training, with an optimizer of the plan's kind whose learning rate is 0: weights
stay as they are to the bit. Buffers and the state of dropouts are put back, gradients are gone.

Bytes are counted first, in steps of their own, since counting takes time; then come the steps that
are timed; on CPUs two more tell what messages there are.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from autoplan.errors import PlanError
from autoplan.measurement import MessageMeasurement, RankMeasurement, Spread, StepMeasurement
from autoplan.runtime.live_bytes import LiveBytes
from autoplan.runtime.machine_load import Load, LoadClock, other_load
from autoplan.runtime.mesh import RankMesh
from autoplan.runtime.pass_clock import PassClock
from autoplan.runtime.state import TrainingState
from autoplan.runtime.weights import local
from autoplan.trace.collection import collection_paused

if TYPE_CHECKING:
    from autoplan.runtime.data import Batch
    from autoplan.runtime.module import ParallelModule

WARM_UP = 2
_TOLD_STEPS = 2
_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "recv", "broadcast")
_OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.0),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.0),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.0),
    "sgd-momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.0, momentum=0.9),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.0),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.0),
}


@dataclass(frozen=True, slots=True)
class _Times:
    """Of a step on one rank; numbers alone, for a row of a tensor."""

    busy_s: float
    optimizer_s: float
    forward_s: float
    backward_s: float
    waiting_s: float


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Of a step on one rank, likewise."""

    peak_bytes: float
    parameter_bytes: float
    gradient_bytes: float
    optimizer_state_bytes: float


def measure_steps(
    module: ParallelModule, state: TrainingState, mesh: RankMesh, batch: Batch, steps: int
) -> StepMeasurement:
    """Runs steps on all ranks, which must all call it; the same result on each.

    Args:
        state: of ``module``.
        batch: this rank's share of the global batch, as for ``train_step``.
        steps: to time.

    Raises:
        PlanError: fewer than 3 steps, of which no quartiles are told, or a plan in fp16, whose
            steps need a scaler.
    """
    if steps < 3:
        raise PlanError(f"{steps} steps: measure 3 or more, whose median says something")
    if module.plan.job.precision == "fp16":
        raise PlanError("a plan in fp16 needs a scaler in every step: measure one in bf16")
    with _as_before(state):
        return _Steps(module, state, mesh, batch).measured(steps)


@contextmanager
def _as_before(state: TrainingState) -> Iterator[None]:
    """Puts buffers and the state of dropouts back; gradients are dropped before and after."""
    random = state.random.document()
    kept = {name: buffer.clone() for name, buffer in state.buffers.items()}
    try:
        yield
    finally:
        state.random.restore(random)
        with torch.no_grad():
            for name, buffer in state.buffers.items():
                buffer.copy_(kept[name])
        for parameter in state.parameters.values():
            parameter.grad = None


class _Steps:
    """The steps of one rank."""

    def __init__(
        self, module: ParallelModule, state: TrainingState, mesh: RankMesh, batch: Batch
    ) -> None:
        self._module, self._state, self._mesh, self._batch = module, state, mesh, batch
        self._is_gpu = mesh.device.type == "cuda"
        self._learning = [p for p in state.parameters.values() if p.requires_grad]
        module.zero_grad()
        self._optimizer = _OPTIMIZERS[module.plan.job.optimizer](self._learning)

    def measured(self, steps: int) -> StepMeasurement:
        own_bytes = self._bytes()
        for _ in range(WARM_UP):
            self._step()
        gc.collect()
        with collection_paused():
            clock = LoadClock()
            timed = self._timed(steps)
            own_load = clock.load()
            messages = () if self._is_gpu or self._mesh.world_size == 1 else self._messages()
        medians = map(statistics.median, zip(*map(astuple, timed), strict=True))
        ends_s = self._of_all([each.busy_s for each in timed])
        loads = [Load(*row) for row in self._of_all(astuple(own_load))]
        return StepMeasurement(
            steps=steps,
            step_s=_spread([max(of_step) for of_step in zip(*ends_s, strict=True)]),
            ranks=self._ranks(_Times(*medians), own_bytes),
            messages=messages,
            other_load=other_load(
                loads, int(os.environ.get("LOCAL_WORLD_SIZE", str(self._mesh.world_size)))
            ),
        )

    def _ranks(self, own_times: _Times, own_bytes: _Bytes) -> tuple[RankMeasurement, ...]:
        """Of all ranks, by rank."""
        pp_ranks = [int(row[0]) for row in self._of_all([self._mesh.pp_rank])]
        times = [_Times(*row) for row in self._of_all(astuple(own_times))]
        nbytes = [_Bytes(*row) for row in self._of_all(astuple(own_bytes))]
        return tuple(
            self._rank(number, *found)
            for number, found in enumerate(zip(pp_ranks, times, nbytes, strict=True))
        )

    def _rank(self, number: int, pp_rank: int, times: _Times, nbytes: _Bytes) -> RankMeasurement:
        return RankMeasurement(
            rank=number,
            pp_rank=pp_rank,
            busy_s=times.busy_s,
            optimizer_s=times.optimizer_s,
            peak_bytes=int(nbytes.peak_bytes),
            held_bytes={
                "parameters": int(nbytes.parameter_bytes),
                "gradients": int(nbytes.gradient_bytes),
                "optimizer_state": int(nbytes.optimizer_state_bytes),
            },
            forward_s=None if self._is_gpu else times.forward_s,
            backward_s=None if self._is_gpu else times.backward_s,
            waiting_s=None if self._is_gpu else times.waiting_s,
        )

    def _step(self) -> float:
        """A step; the second when its optimizer's part begins."""
        self._module.train_step(self._batch)
        begins_s = self._now_s()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return begins_s

    def _now_s(self) -> float:
        if self._is_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    def _timed(self, steps: int) -> list[_Times]:
        """Of every step on this rank."""
        clock = PassClock()
        found: list[_Times] = []
        with clock.timing(self._module.programs):
            for _ in range(steps):
                self._mesh.barrier()
                clock.restart()
                started_s = self._now_s()
                begins_s = self._step()
                ended_s = self._now_s()
                found.append(
                    _Times(
                        ended_s - started_s,
                        ended_s - begins_s,
                        clock.forward_s,
                        clock.backward_s,
                        clock.waiting_s,
                    )
                )
        self._mesh.barrier()
        return found

    def _bytes(self) -> _Bytes:
        """Of a step behind the first, which makes the optimizer's state."""
        if self._is_gpu:
            self._step()
            torch.cuda.reset_peak_memory_stats()
            self._step()
            peak = torch.cuda.max_memory_allocated()
        else:
            with LiveBytes() as live:
                live.watch((*self._state.parameters.values(), *self._state.buffers.values()))
                live.watch(_tensors(self._batch))
                self._step()
                gc.collect()
                live.restart()
                self._step()
            peak = live.peak_bytes
        self._module.train_step(self._batch)
        gradients = [p.grad for p in self._learning if p.grad is not None]
        self._optimizer.zero_grad()
        states = (v for each in self._optimizer.state.values() for v in each.values())
        return _Bytes(
            float(peak),
            _nbytes(self._state.parameters.values()),
            _nbytes(gradients),
            _nbytes(v for v in states if isinstance(v, Tensor)),
        )

    def _messages(self) -> tuple[MessageMeasurement, ...]:
        """By kind, as the profiler sees them, on the rank where each kind takes longest."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU]) as told:
            for _ in range(_TOLD_STEPS):
                self._step()
        seconds: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        for event in told.key_averages():
            backend, colon, kind = event.key.partition(":")
            if colon and backend == "gloo" and kind in _KINDS:
                seconds[kind] += event.cpu_time_total * 1e-6 / _TOLD_STEPS
                counts[kind] += event.count // _TOLD_STEPS
        rows = self._of_all([float(v) for kind in _KINDS for v in (counts[kind], seconds[kind])])
        found = []
        for number, kind in enumerate(_KINDS):
            count, longest_s = max(
                (row[2 * number : 2 * number + 2] for row in rows), key=lambda pair: pair[1]
            )
            if count:
                found.append(MessageMeasurement(kind=kind, count=int(count), seconds=longest_s))
        return tuple(found)

    def _of_all(self, own: Sequence[float]) -> list[list[float]]:
        """The rows of all ranks, by rank."""
        table = torch.zeros(
            (self._mesh.world_size, len(own)), dtype=torch.float64, device=self._mesh.device
        )
        table[self._mesh.rank] = torch.tensor(own, dtype=torch.float64)
        return self._mesh.sum_over_world(table).tolist()


def _spread(seconds: Sequence[float]) -> Spread:
    low_s, middle_s, high_s = statistics.quantiles(seconds, n=4, method="inclusive")
    return Spread(median_s=middle_s, low_s=low_s, high_s=high_s)


def _nbytes(tensors: Iterable[Tensor]) -> float:
    """Of this rank's pieces."""
    return float(sum(local(tensor).nbytes for tensor in tensors))


def _tensors(batch: Batch) -> list[Tensor]:
    values = batch.values() if isinstance(batch, Mapping) else batch
    return [value for value in values if isinstance(value, Tensor)]
