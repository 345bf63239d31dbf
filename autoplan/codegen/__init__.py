"""Writes the module that one rank runs, as readable Python, and builds it for a model.

``emit_program(graph, plan)`` decides everything and touches no model. ``build_module`` makes the
``nn.Module`` from the emitted source and from parameters that the caller supplies, so that the
caller decides whether they are DTensors, plain tensors or meta tensors.
"""

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
