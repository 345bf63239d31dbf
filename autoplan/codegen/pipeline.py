"""From a graph and a plan to emitted source: batch layout, assignment, lowering, printing."""

from __future__ import annotations

from autoplan.codegen.emitted import Emitted
from autoplan.plan import Plan
from autoplan.trace.graph import OpGraph


def emit_program(graph: OpGraph, plan: Plan) -> Emitted:
    """The sharded program of ``plan``.

    Raises:
        PlanError: when the plan does not belong to the graph.
        UnsupportedModelError: when the model cannot run correctly in this mesh.
    """
    raise NotImplementedError
