"""What calibrating a profile finds."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.calibration.factors import Factors
from autoplan.measurement import StepMeasurement
from autoplan.plan import Plan
from hardware_profiles.schema import ProfileFacts


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibrated:
    """A measured plan, how far off its prediction was, and the corrected profile."""

    plan: Plan
    measured: StepMeasurement
    factors: Factors
    profile: ProfileFacts
