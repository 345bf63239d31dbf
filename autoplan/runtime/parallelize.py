"""From a model, its graph and a plan to the module that this rank trains."""

from __future__ import annotations

import hashlib
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn

from autoplan.capabilities import RUNNABLE_PRECISIONS
from autoplan.codegen.emitted import Emitted
from autoplan.codegen.orders import check_orders
from autoplan.codegen.pipeline import emit_program
from autoplan.codegen.runnable import obstacle
from autoplan.errors import PlanError
from autoplan.plan import Plan
from autoplan.runtime.collectives import AxisGroup
from autoplan.runtime.compiled import check_compiles
from autoplan.runtime.engines import Engine, OneStage
from autoplan.runtime.evaluation import Evaluator
from autoplan.runtime.gradients import GradientSum
from autoplan.runtime.mesh import RankMesh, build_mesh
from autoplan.runtime.modes import lowest_dtype, mode_dependent
from autoplan.runtime.module import ParallelModule, TracedModel
from autoplan.runtime.pipeline import Pipeline, shape_of
from autoplan.runtime.random import RandomState, agreed_seed
from autoplan.runtime.running_statistics import statistics_of
from autoplan.runtime.scripts import world_of_plan
from autoplan.runtime.stages import (
    LocalStage,
    build_stages,
    gradient_sum,
    layouts_on_dp,
    parameters_of,
)
from autoplan.runtime.state import TrainingState
from autoplan.runtime.train import Trainer
from autoplan.runtime.weights import WeightSource
from autoplan.trace.evaluation import serves_both
from autoplan.trace.graph import OpGraph, Ref
from autoplan.trace.inputs import positional_names
from autoplan.trace.outputs import ModelForward
from autoplan.trace.precision import COMPUTE_DTYPES


def parallelize(
    model: nn.Module,
    graph: OpGraph,
    plan: Plan,
    *,
    device: torch.device | None = None,
    seed: int | None = None,
    evaluation: OpGraph | None = None,
    forward: ModelForward | None = None,
    compiler: str | None = None,
) -> ParallelModule:
    """This rank's part of ``model`` in the training that ``plan`` decided.

    Call it on every rank of an initialised process group with the plan's world size; a single
    process needs no group. The weights of rank 0's model count, and ``model`` is left as it is.

    Args:
        graph: of ``model``, as ``trace.capture`` made it, in the plan's precision.
        device: where this rank computes; by default its CUDA device under NCCL, else the CPU.
        seed: of all dropouts; that of rank 0 counts, by default ``torch.initial_seed()``.
        evaluation: of the model in eval mode; without it, one that has dropout or the like cannot
            be switched to evaluation.
        forward: the model that outputs without a loss are those of; by default ``model`` with no
            other arguments than tensors.
        compiler: backend of ``torch.compile`` for the program; None runs it eagerly.

    Raises:
        PlanError: when plan, graph, model and process group do not fit each other, or the ranks
            hold different plans.
        UnsupportedModelError: when the model cannot run correctly in this mesh.
    """
    _check_runs(graph, plan, compiler)
    compute_dtype = _compute_dtype(plan)
    mesh = build_mesh(plan.mesh, plan.replicas, device)
    _check_same_plan(plan, mesh)
    emitted = emit_program(graph, plan)
    check_orders(world_of_plan(emitted, plan))
    _check_precision(emitted, compute_dtype, plan)
    source = WeightSource(model, emitted, mesh, compute_dtype)
    buffers = {name: source.buffer(name) for name in emitted.buffers}
    layouts = layouts_on_dp(emitted, source, plan.zero, mesh)
    axes = {name: axis_group(mesh, name) for name in ("dp", "tp")}
    stages = build_stages(
        emitted,
        source,
        buffers,
        axes=axes,
        layouts=layouts,
        zero=plan.zero,
        mesh=mesh,
        compute_dtype=compute_dtype,
        compiler=compiler,
    )
    parameters = parameters_of(stages, layouts)
    trained = {name: layouts[name] for name in emitted.parameters}
    sums = gradient_sum(stages, parameters, trained, mesh, zero=plan.zero)
    random = RandomState(agreed_seed(seed, mesh))
    trainer = Trainer(
        stages,
        _engine(stages, emitted, plan, mesh, sums),
        sums,
        mesh,
        random,
        statistics_of(stages, buffers, mesh),
    )
    kept = forward or ModelForward(model, dtype=compute_dtype, batch_norm=plan.job.batch_norm)
    held = {name: b for name, b in buffers.items() if mesh.pp_rank in layouts[name].pp_ranks}
    return ParallelModule(
        stages=stages,
        trainer=trainer,
        state=TrainingState(
            parameters=parameters, layouts=layouts, buffers=held, mesh=mesh, random=random
        ),
        emitted=emitted,
        plan=plan,
        mesh=mesh,
        traced=_traced(model, graph, evaluation, len(emitted.inputs)),
        evaluator=Evaluator(kept, graph, emitted, plan, stages, trainer, axes, mesh),
    )


def _check_runs(graph: OpGraph, plan: Plan, compiler: str | None) -> None:
    """Raises PlanError where the plan is another model's, or cannot run."""
    if plan.fingerprint != graph.fingerprint:
        raise PlanError("the plan was made for another model: plan this model anew")
    reason = obstacle(graph, plan)
    if reason is not None:
        raise PlanError(reason)
    if compiler is not None:
        check_compiles(compiler, plan.schedule)


def _traced(
    model: nn.Module, graph: OpGraph, evaluation: OpGraph | None, inputs: int
) -> TracedModel:
    serves = evaluation is not None and serves_both(graph, evaluation)
    return TracedModel(
        fingerprint=graph.fingerprint,
        tied=graph.tied,
        training=model.training,
        mode_dependent=None if serves else mode_dependent(graph),
        lowest_dtype=lowest_dtype(graph),
        readers=_readers(graph),
        positional=tuple(positional_names(model, inputs)),
    )


def _engine(
    stages: list[LocalStage], emitted: Emitted, plan: Plan, mesh: RankMesh, sums: GradientSum
) -> Engine:
    if mesh.pp == 1:
        return OneStage(stages[0], sums, mesh)
    return Pipeline(stages, shape_of(plan), mesh, getattr(torch, emitted.loss_dtype))


def _readers(graph: OpGraph) -> dict[str, str]:
    """The first operator that reads each parameter."""
    read = {n.target: graph.readers.get(Ref(n.name)) for n in graph.of_kind("parameter")}
    return {target: readers[0] for target, readers in read.items() if readers}


def axis_group(mesh: RankMesh, name: Literal["dp", "tp"]) -> AxisGroup:
    """This rank's place on one axis, as the emitted program wants it."""
    size, rank = (mesh.dp, mesh.dp_rank) if name == "dp" else (mesh.tp, mesh.tp_rank)
    group = mesh.group(name)
    return AxisGroup(
        name=name, size=size, rank=rank, group="" if group is None else group.group_name
    )


def _compute_dtype(plan: Plan) -> torch.dtype | None:
    """The dtype of a mixed precision plan; None where weights compute in their own."""
    if plan.job.precision not in RUNNABLE_PRECISIONS:
        raise PlanError(
            f"precision {plan.job.precision} cannot be run: use one of "
            f"{', '.join(RUNNABLE_PRECISIONS)}"
        )
    return COMPUTE_DTYPES[plan.job.precision]


def _check_precision(emitted: Emitted, compute_dtype: torch.dtype | None, plan: Plan) -> None:
    if compute_dtype is None:
        return
    for name, stored in emitted.parameters.items():
        dtype = getattr(torch, stored.meta.dtype)
        if dtype.is_floating_point and dtype != compute_dtype:
            raise PlanError(
                f"the plan computes in {plan.job.precision} but {name!r} was traced in "
                f"{stored.meta.dtype}: trace the model in {plan.job.precision}"
            )


def _check_same_plan(plan: Plan, mesh: RankMesh) -> None:
    """Raises on every rank when any two hold different plans."""
    if mesh.world_size == 1:
        return
    digest = hashlib.sha256(repr(plan).encode()).digest()
    own = torch.frombuffer(bytearray(digest), dtype=torch.uint8).to(mesh.device)
    first = own.clone()
    dist.broadcast(first, src=0)
    differs = torch.tensor(float(not torch.equal(own, first)), device=mesh.device)
    if mesh.sum_over_world(differs).item() > 0:
        raise PlanError("the ranks hold different plans: give all of them the plan of rank 0")
