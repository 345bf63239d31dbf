"""What each rank of a plan would do, from its program and its layouts alone."""

from __future__ import annotations

import math
from collections import Counter

import torch
from torch import nn

from autoplan.codegen.emitted import Emitted
from autoplan.codegen.orders import Collective, World, check_orders
from autoplan.codegen.pipeline import emit_program
from autoplan.codegen.runnable import obstacle
from autoplan.errors import PlanError
from autoplan.plan import Plan
from autoplan.rehearsal import Held, Part, Rehearsal
from autoplan.runtime.mesh import RankMesh
from autoplan.runtime.scripts import world_of_plan
from autoplan.runtime.stages import layouts_on_dp
from autoplan.runtime.weights import MASTER_DTYPE, WeightSource
from autoplan.trace.graph import OpGraph
from autoplan.trace.precision import COMPUTE_DTYPES


def rehearse(plan: Plan, model: nn.Module, graph: OpGraph) -> Rehearsal:
    """The parts of all ranks.

    Args:
        model: on any device; only its shapes are read.

    Raises:
        PlanError, UnsupportedModelError: a plan that cannot be run.
    """
    reason = obstacle(graph, plan)
    if reason is not None:
        raise PlanError(reason)
    emitted = emit_program(graph, plan)
    world = world_of_plan(emitted, plan)
    return Rehearsal(
        mesh={"pp": plan.mesh.pp, "dp": plan.mesh.dp, "tp": plan.mesh.tp},
        orders=check_orders(world),
        parts=tuple(_part(plan, model, emitted, world, place) for place in range(plan.mesh.pp)),
    )


def _part(plan: Plan, model: nn.Module, emitted: Emitted, world: World, place: int) -> Part:
    stages = [index for index, stage in enumerate(emitted.stages) if stage.rank == place]
    own = {name for index in stages for name in emitted.stages[index].parameters}
    first = world.rank(place, 0, 0)
    ranks = (world.rank(place, dp, tp) for dp in range(world.dp) for tp in range(world.tp))
    return Part(
        place=place,
        ranks=tuple(sorted(ranks)),
        stages=tuple(stages),
        blocks=tuple(path for index in stages for path in emitted.stages[index].block_classes),
        parameters=tuple(held for held in _held(plan, model, emitted, place) if held.name in own),
        meetings=_meetings(world, first),
    )


def _held(plan: Plan, model: nn.Module, emitted: Emitted, place: int) -> list[Held]:
    """Every parameter as a rank at this place would hold it."""
    mesh = RankMesh(
        pp=plan.mesh.pp, dp=plan.mesh.dp, tp=plan.mesh.tp, pp_rank=place, dp_rank=0, tp_rank=0,
        outermost=plan.mesh.outermost, replicas=plan.replicas, device=torch.device("meta"),
        device_mesh=None,
    )  # fmt: skip
    mixed = COMPUTE_DTYPES[plan.job.precision]
    source = WeightSource(model, emitted, mesh, mixed)
    layouts = layouts_on_dp(emitted, source, plan.zero, mesh)
    whole = dict(model.named_parameters(remove_duplicate=False))
    found = []
    for name in emitted.parameters:
        shape, given = layouts[name].box(mesh).shape, whole[name]
        dtype = MASTER_DTYPE if mixed and given.is_floating_point() else given.dtype
        found.append(
            Held(
                name=name,
                shape=layouts[name].shape,
                local_shape=shape,
                dtype=str(dtype).removeprefix("torch."),
                nbytes=math.prod(shape) * dtype.itemsize,
            )
        )
    return found


def _meetings(world: World, rank: int) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for event in world.scripts[world.script_of[rank]]:
        if isinstance(event, Collective):
            counts[f"{event.axis} {event.what.split(' ')[0]}"] += 1
        else:
            counts[f"pp {event.kind}"] += 1
    return dict(sorted(counts.items()))
