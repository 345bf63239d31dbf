"""Predictions beside what the rows report.

A row that cannot be priced keeps the reason; none is dropped. Where a row leaves its microbatch or
its interleaving open, people are taken to have tuned them: the choice that is predicted fastest
among those that fit counts, and is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from autoplan.progress import Progress, silent
from autoplan.validation.memory.fullest_rank import memory_of
from autoplan.validation.published.reported import (
    compared_bytes,
    reported_bytes,
    reported_out_of_memory,
    scope_of,
)
from autoplan.validation.published.rows import MeasuredRow
from autoplan.validation.setups.configuration import Configuration, configuration_of
from autoplan.validation.setups.setup import Setup
from autoplan.validation.step.step_time import StepTime, step_of
from cost_models.memory import MemoryBreakdown
from hardware_profiles.load import load
from hardware_profiles.spec import ClusterSpec, DeviceSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Models:
    """The cost models that are compared with the rows."""

    step_of: Callable[[Setup, ClusterSpec], StepTime]
    memory_of: Callable[[Setup], MemoryBreakdown]


MODELS = Models(step_of=step_of, memory_of=memory_of)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """One row, and what is predicted for it.

    Attributes:
        setup: None where the row is not complete enough.
        predicted_s: step time; None where it is not priced.
        predicted_bytes: of what the row's figure counts, the whole device where it has none.
        out_of_memory: predicted not to fit; None where memory is not priced.
        reported_out_of_memory: as the row tells; None where it does not.
        skipped: why something that the row reports is not priced.
    """

    row: MeasuredRow
    setup: Setup | None
    predicted_s: float | None
    predicted_bytes: int | None
    out_of_memory: bool | None
    reported_out_of_memory: bool | None
    assumed: tuple[str, ...]
    skipped: str | None

    @property
    def priced(self) -> bool:
        return self.predicted_s is not None or self.predicted_bytes is not None

    @property
    def reported_bytes(self) -> int | None:
        return reported_bytes(self.row)

    @property
    def error(self) -> float | None:
        """Predicted over reported step time, minus 1."""
        return _error(self.predicted_s, self.row.step_time_s)

    @property
    def mem_error(self) -> float | None:
        """Predicted over reported memory, minus 1."""
        return _error(self.predicted_bytes, self.reported_bytes)


def predictions_of(
    rows: Sequence[MeasuredRow],
    *,
    models: Models = MODELS,
    progress: Progress = silent,
) -> tuple[Prediction, ...]:
    """Predicts every row.

    Args:
        rows: measured rows.
        models: what predicts.
        progress: called with the fraction done and what is being done.
    """
    found = []
    for index, row in enumerate(rows):
        progress(index / len(rows), f"pricing {row.set}")
        found.append(_prediction(row, models))
    return tuple(found)


def _prediction(row: MeasuredRow, models: Models) -> Prediction:
    try:
        configuration = configuration_of(row)
        setup = tuned_setup(configuration, models)
        cluster = _cluster(setup.cluster)
        memory = None if setup.layer_only else models.memory_of(setup)
        timed = configuration.no_time is None
        step_s = models.step_of(setup, cluster).step_s if timed else None
    except ValueError as reason:
        return _not_priced(row, str(reason))
    device = cluster.device
    scope = "device" if row.peak_mem_gb is None else scope_of(row)
    counted = None if memory is None else compared_bytes(memory, scope, device)
    return Prediction(
        row=row,
        setup=setup,
        predicted_s=step_s,
        predicted_bytes=counted,
        out_of_memory=None if memory is None else not _fits(memory, device),
        reported_out_of_memory=reported_out_of_memory(row, device.memory_bytes),
        assumed=(*configuration.assumed, *_tuned(configuration, setup)),
        skipped=configuration.no_time if row.step_time_s is not None else None,
    )


def tuned_setup(configuration: Configuration, models: Models = MODELS) -> Setup:
    """The fastest of a row's choices that fit; of all where none does."""
    choices = configuration.choices
    if len(choices) == 1:
        return choices[0]
    cluster = _cluster(choices[0].cluster)
    fitting = [setup for setup in choices if _fits(models.memory_of(setup), cluster.device)]
    return min(fitting or choices, key=lambda setup: models.step_of(setup, cluster).step_s)


def _fits(memory: MemoryBreakdown, device: DeviceSpec) -> bool:
    return compared_bytes(memory, "device", device) <= device.memory_bytes


def _tuned(configuration: Configuration, setup: Setup) -> list[str]:
    """What tuning chose."""
    choices = configuration.choices
    chosen = []
    if len({each.microbatch for each in choices}) > 1:
        chosen.append(f"micro_batch: {setup.microbatch}, the fastest")
    if len({each.virtual_stages for each in choices}) > 1:
        chosen.append(f"vpp: {setup.virtual_stages}, the fastest")
    return chosen


def _not_priced(row: MeasuredRow, reason: str) -> Prediction:
    return Prediction(
        row=row,
        setup=None,
        predicted_s=None,
        predicted_bytes=None,
        out_of_memory=None,
        reported_out_of_memory=None,
        assumed=(),
        skipped=" ".join(reason.split()),
    )


@cache
def _cluster(name: str) -> ClusterSpec:
    return load(name)


def _error(predicted: float | None, reported: float | None) -> float | None:
    if predicted is None or reported is None:
        return None
    return predicted / reported - 1
