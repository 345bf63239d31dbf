"""Why no plan is possible or fits, and the nearest change that would, proven by a solve."""

from __future__ import annotations

from autoplan.errors import InfeasibleError
from autoplan.search.pipeline.configs import Config
from autoplan.search.pipeline.joint import JointSearch
from autoplan.search.pricing import Pricing
from autoplan.search.regions.menus import Recompute
from autoplan.trace.stack import Stack


def no_configuration(pricing: Pricing, stack: Stack, degrees: tuple[int, ...]) -> str:
    """Why the job allows no configuration."""
    return "no mesh and microbatch agree with the pins and the batch; leave out a pin"


def does_not_fit(
    pricing: Pricing, search: JointSearch, offered: tuple[Config, ...], recompute: Recompute
) -> InfeasibleError:
    """The error for a job of which no configuration fits."""
    return InfeasibleError("no plan fits")
