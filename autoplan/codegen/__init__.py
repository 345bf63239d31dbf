"""Writes the module that one rank runs, as readable Python, and builds it for a model.

``emit_program(graph, plan)`` decides everything and touches no model. ``build_module`` makes the
``nn.Module`` from the emitted source and from parameters that the caller supplies, so that the
caller decides whether they are DTensors, plain tensors or meta tensors.

What is asked of a plan before anything is written (``runnable``, ``checks``) needs little of this
package: its names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoplan.codegen.build import bind_methods, build_module
    from autoplan.codegen.emitted import (
        BatchInput,
        Count,
        Emitted,
        EmittedStage,
        Output,
        StoredTensor,
    )
    from autoplan.codegen.evaluation import emit_evaluation
    from autoplan.codegen.pipeline import choices_of, emit_program
    from autoplan.codegen.program import Boundary

_HOMES = {
    "BatchInput": "emitted",
    "Boundary": "program",
    "Count": "emitted",
    "Emitted": "emitted",
    "EmittedStage": "emitted",
    "Output": "emitted",
    "StoredTensor": "emitted",
    "bind_methods": "build",
    "build_module": "build",
    "choices_of": "pipeline",
    "emit_evaluation": "evaluation",
    "emit_program": "pipeline",
}

__all__ = [
    "BatchInput",
    "Boundary",
    "Count",
    "Emitted",
    "EmittedStage",
    "Output",
    "StoredTensor",
    "bind_methods",
    "build_module",
    "choices_of",
    "emit_evaluation",
    "emit_program",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
