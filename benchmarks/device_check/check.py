"""Sets what a device does beside what two profiles of it predict.

The device is a protocol, so that the check runs without one; ``on_gpu`` is the real one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from autoplan.plan import Plan
from benchmarks.device_check.largest import largest_that_fits
from benchmarks.device_check.settings import Setting
from benchmarks.targets import are_bytes_met

TIME_ERROR = 0.08
TRIES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFigures:
    """Seconds of a step in the median, and most bytes allocated in one: measured or predicted."""

    step_s: float
    peak_bytes: int


class DoesNotFitError(Exception):
    """The device ran out of memory."""


class Device(Protocol):
    """Where settings are trained and planned."""

    def now_s(self) -> float:
        """Seconds of a clock that only goes on."""
        ...

    def planned(self, setting: Setting, profile: str) -> Plan:
        """The plan of one rank by a profile, as if memory were enough for it."""
        ...

    def trained(self, setting: Setting, plan: Plan) -> StepFigures:
        """Trains a few steps.

        Raises:
            DoesNotFitError: out of memory.
        """
        ...

    def free_bytes(self) -> int:
        """What tensors of one process may take."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A setting: trained, and predicted by each profile."""

    setting: Setting
    trained: StepFigures | None
    predicted: tuple[StepFigures, ...]

    def time_error(self, profile: int) -> float | None:
        """None where nothing was trained, or the time is not predicted."""
        if self.trained is None or self.setting.compiled:
            return None
        return self.predicted[profile].step_s / self.trained.step_s - 1

    def bytes_error(self, profile: int) -> float | None:
        if self.trained is None or self.setting.compiled:
            return None
        return self.predicted[profile].peak_bytes / self.trained.peak_bytes - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Largest:
    """The largest batch of a setting: predicted by each profile, and bounds of the true one."""

    setting: Setting
    predicted: tuple[int, ...]
    fits: int
    does_not: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """All that was done in time; ``left`` names what was not."""

    profiles: tuple[str, ...]
    rows: tuple[Row, ...]
    largest: tuple[Largest, ...]
    left: tuple[str, ...]

    def is_met(self, profile: int) -> bool:
        """Whether a profile's predictions are within the targets."""
        times = [abs(e) for row in self.rows if (e := row.time_error(profile)) is not None]
        errors = [e for row in self.rows if (e := row.bytes_error(profile)) is not None]
        return bool(times) and statistics.median(times) <= TIME_ERROR and are_bytes_met(errors)


def check(
    device: Device,
    profiles: Sequence[str],
    settings: Sequence[Setting],
    largest: Sequence[Setting],
    *,
    limit_s: float,
    tell: Callable[[str], None],
) -> Checked:
    """Trains settings one after the other, then looks for largest batches, until time is up.

    Args:
        profiles: names or files; the last one made here.
        limit_s: after which nothing is begun.
        tell: called with what is begun.
    """
    end_s = device.now_s() + limit_s
    rows: list[Row] = []
    found: list[Largest] = []
    left: list[str] = []
    for setting in settings:
        if device.now_s() >= end_s:
            left.append(setting.name)
            continue
        tell(setting.name)
        rows.append(_row(device, profiles, setting))
    for setting in largest:
        if device.now_s() >= end_s:
            left.append(f"largest batch of {setting.name}")
            continue
        tell(f"largest batch of {setting.name}")
        found.append(_largest(device, profiles, setting))
    return Checked(
        profiles=tuple(profiles), rows=tuple(rows), largest=tuple(found), left=tuple(left)
    )


def _row(device: Device, profiles: Sequence[str], setting: Setting) -> Row:
    plans = [device.planned(setting, profile) for profile in profiles]
    try:
        trained = device.trained(setting, plans[-1])
    except DoesNotFitError:
        trained = None
    return Row(setting=setting, trained=trained, predicted=tuple(map(_predicted, plans)))


def _predicted(plan: Plan) -> StepFigures:
    memory = plan.estimate.stages[0].memory
    return StepFigures(step_s=plan.estimate.step_s, peak_bytes=memory.total - memory.workspace)


def _largest(device: Device, profiles: Sequence[str], setting: Setting) -> Largest:
    predicted = tuple(_largest_predicted(device, profile, setting) for profile in profiles)

    def fits(samples: int) -> bool:
        tried = replace(setting, samples=samples)
        try:
            device.trained(tried, device.planned(tried, profiles[-1]))
        except DoesNotFitError:
            return False
        return True

    low, high = largest_that_fits(fits, max(1, predicted[-1]), TRIES)
    return Largest(setting=setting, predicted=predicted, fits=low, does_not=high)


def _largest_predicted(device: Device, profile: str, setting: Setting) -> int:
    """Bytes are a straight line of the samples."""
    one, many = (
        _predicted(device.planned(replace(setting, samples=samples), profile)).peak_bytes
        for samples in (setting.samples, 2 * setting.samples)
    )
    each = (many - one) / setting.samples
    return int((device.free_bytes() - (one - each * setting.samples)) / each)
