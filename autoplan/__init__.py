"""autoplan: plans, explains and runs the parallel training of PyTorch models.

The public names below are imported when they are first used, so that the command line answers at
once and PyTorch is loaded only by what needs it. ``autoplan.plan`` is the function; the module of
the same name is read with ``from autoplan.plan import Plan``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoplan.api import (
        calibrate,
        compile,
        dry_run,
        explain,
        load_plan,
        plan,
        print_report,
        save_plan,
        verify,
    )
    from autoplan.capacity import size, sweep
    from autoplan.checkup import doctor
    from autoplan.custom_ops.register import register_rule
    from autoplan.errors import (
        AutoplanError,
        CheckpointError,
        InfeasibleError,
        PlanError,
        ProfileError,
        UnsupportedModelError,
    )
    from autoplan.explanation import Explanation
    from autoplan.findings import Findings
    from autoplan.other_sizes import outlook
    from autoplan.plan import Plan
    from autoplan.rehearsal import Rehearsal
    from autoplan.runtime.module import ParallelModule
    from autoplan.runtime.reference_dropout import reference_dropout
    from autoplan.verdict import Verification

# Importing a module binds its name here, once and for all: get that over, and free the name for
# the function.
import_module("autoplan.plan")
del globals()["plan"]

_HOMES = {
    "calibrate": "api",
    "compile": "api",
    "doctor": "checkup",
    "dry_run": "api",
    "explain": "api",
    "load_plan": "api",
    "plan": "api",
    "print_report": "api",
    "save_plan": "api",
    "outlook": "other_sizes",
    "size": "capacity",
    "sweep": "capacity",
    "verify": "api",
    "AutoplanError": "errors",
    "CheckpointError": "errors",
    "InfeasibleError": "errors",
    "PlanError": "errors",
    "ProfileError": "errors",
    "UnsupportedModelError": "errors",
    "Explanation": "explanation",
    "Findings": "findings",
    "Plan": "plan",
    "ParallelModule": "runtime.module",
    "Rehearsal": "rehearsal",
    "Verification": "verdict",
    "register_rule": "custom_ops.register",
    "reference_dropout": "runtime.reference_dropout",
}

__all__ = [
    "AutoplanError",
    "CheckpointError",
    "Explanation",
    "Findings",
    "InfeasibleError",
    "ParallelModule",
    "Plan",
    "PlanError",
    "ProfileError",
    "Rehearsal",
    "UnsupportedModelError",
    "Verification",
    "calibrate",
    "compile",
    "doctor",
    "dry_run",
    "explain",
    "load_plan",
    "outlook",
    "plan",
    "print_report",
    "reference_dropout",
    "register_rule",
    "save_plan",
    "size",
    "sweep",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'autoplan' has no attribute {name!r}")
    found = getattr(import_module(f"autoplan.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
