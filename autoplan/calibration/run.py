"""Measures the plan of a job on the ranks that ``torchrun`` started, or on processes of its own."""

from __future__ import annotations

from dataclasses import asdict

import torch
import torch.distributed as dist
from pydantic import TypeAdapter

from autoplan.errors import PlanError
from autoplan.measurement import StepMeasurement
from autoplan.plan import Plan
from autoplan.runtime.parallelize import parallelize
from autoplan.trace.graph import OpGraph
from autoplan.verification.inputs import draw_inputs
from autoplan.verification.model import with_weights
from autoplan.verification.processes import RanksFailedError, answer_of_ranks
from autoplan.zoo import ModelUnderPlan

DEADLINE_S = 600.0
MOST_PROCESSES = 16
_MEASUREMENT = TypeAdapter(StepMeasurement)


def measure_plan(plan: Plan, case: ModelUnderPlan, graph: OpGraph, steps: int) -> StepMeasurement:
    """Trains by a plan, on random inputs, as long as its measurement takes.

    Raises:
        PlanError: more ranks than processes are started here, or ranks that failed.
    """
    world = plan.mesh.world_size
    if dist.is_initialized() or world == 1:
        return _measured(plan, case, graph, steps)
    if torch.cuda.is_available() or world > MOST_PROCESSES:
        raise PlanError(
            f"the plan is for {world} ranks: run torchrun --nproc-per-node N --no-python "
            "autoplan calibrate there"
        )
    try:
        found = answer_of_ranks(
            lambda: asdict(_measured(plan, case, graph, steps)), world, deadline_s=DEADLINE_S
        )
    except RanksFailedError as error:
        raise PlanError(f"measuring failed: {error}") from None
    return _MEASUREMENT.validate_python(found)


def _measured(plan: Plan, case: ModelUnderPlan, graph: OpGraph, steps: int) -> StepMeasurement:
    module = parallelize(with_weights(case.model), graph, plan, seed=0)
    device = next(module.parameters()).device
    drawn = draw_inputs(graph, case, plan.job.global_batch)
    batch = module.shard_batch({name: value.to(device) for name, value in drawn.items()})
    return module.measure(batch, steps)
