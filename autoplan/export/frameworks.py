"""The frameworks that plans can be exported to, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autoplan.errors import PlanError
from autoplan.export.accelerate import accelerate
from autoplan.export.decisions import Decisions
from autoplan.export.deepspeed import deepspeed
from autoplan.export.exported import Exported
from autoplan.export.megatron import megatron
from autoplan.export.torch_script import torch_script
from autoplan.export.torchtitan import torchtitan
from autoplan.plan import Plan

FRAMEWORKS: Mapping[str, Callable[[Decisions], Exported]] = {
    "torchtitan": torchtitan,
    "megatron": megatron,
    "deepspeed": deepspeed,
    "accelerate": accelerate,
    "torch": torch_script,
}


def export(plan: Plan, to: str) -> Exported:
    """The nearest configuration of a framework, with what it cannot express.

    Args:
        to: a name in ``FRAMEWORKS``.

    Raises:
        PlanError: no such framework, or the plan has what it cannot have at all.
    """
    if to not in FRAMEWORKS:
        raise PlanError(f"--to {to}: no such framework; use {', '.join(FRAMEWORKS)}")
    if plan.mesh.cp > 1:
        raise PlanError(
            f"--to {to}: cp={plan.mesh.cp} splits tokens over ranks of their own, which exports do "
            "not write; plan with cp=1"
        )
    return FRAMEWORKS[to](Decisions(plan))
