"""The whole way in one screen: load the model, capture its graph, plan, emit, run.

PyTorch is imported by the functions that need it, so that plans can be read and reported without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoplan import plan_io, request, subject
from autoplan.captured import captured, forward_of
from autoplan.errors import PlanError, UnsupportedModelError
from autoplan.job import DEFAULT_MEMORY_MARGIN, Job, Pins
from autoplan.plan import Plan
from autoplan.progress import Progress, rest_of, silent
from autoplan.report import show
from autoplan.searched import searched

if TYPE_CHECKING:
    from torch import nn

    from autoplan.calibration.calibrated import Calibrated
    from autoplan.explanation import Explanation
    from autoplan.rehearsal import Rehearsal
    from autoplan.runtime.module import ParallelModule
    from autoplan.trace.graph import OpGraph
    from autoplan.verdict import Verification
    from autoplan.zoo import ModelUnderPlan

ExampleInputs = tuple[Any, ...] | Mapping[str, Any]
GivenPins = Mapping[str, int | str] | Pins | None

# Where tracing and searching start on the scale of progress.
_TRACING, _SEARCHING = 0.2, 0.5

load_plan = plan_io.load
save_plan = plan_io.save
print_report = show.print_report


def plan(
    model: nn.Module | str,
    example_inputs: ExampleInputs | None = None,
    *,
    cluster: str,
    nodes: int = 1,
    gpus_per_node: int | None = None,
    global_batch: int,
    seq_len: int | None = None,
    inputs: Mapping[str, tuple[int, ...]] | None = None,
    precision: str = "bf16",
    optimizer: str = "adamw",
    batch_norm: str = "sync",
    pins: GivenPins = None,
    placements: Mapping[str, object] | None = None,
    memory_limit: str | float | None = None,
    memory_margin: str | float = DEFAULT_MEMORY_MARGIN,
    planned_only: bool = False,
    time_limit_s: float | None = None,
    loss_fn: Callable[..., Any] | None = None,
    batch_dims: Mapping[str, int | None] | None = None,
    progress: Progress | None = None,
) -> Plan:
    """The best way to train ``model`` on ``cluster``, and what it is predicted to cost.

    Args:
        model: a module (on any device, ``meta`` included), a zoo name, the path of a transformers
            ``config.json``, or ``pkg.mod:factory``.
        example_inputs: arguments of a module, as a tuple or as a dict of keyword arguments;
            tensors are ``[batch, ...]`` with any number of samples, other values are fixed. Not
            for models given by name, which bring their own.
        cluster: name of a hardware profile, or path of a ``.toml`` file.
        nodes, gpus_per_node: devices used; all of one node by default.
        global_batch: samples per optimizer step.
        seq_len, inputs: tokens per sample, and shapes of inputs, of a model given by name.
        precision: ``bf16`` or ``fp16`` (with fp32 master weights), or ``fp32``.
        optimizer: what memory and time are planned for: a name in ``cost_models.optimizers``.
        batch_norm: ``sync``, where BatchNorms take the statistics of the whole batch, so that a
            rank has one microbatch and there is no pipeline; or ``local``, where each data-parallel
            rank and microbatch takes those of its own rows, as in plain DDP.
        pins: decisions already taken: ``{"tp": 2, "recompute": "full"}``.
        placements: how parameters are stored over ``tp``, by globs of their names:
            ``{"model.layers.*.mlp.*.weight": "Shard(0)"}``, or ``"Replicate()"``.
        memory_limit: what may be used of each device: ``"70GiB"``, bytes, or a fraction up to 1.
        memory_margin: the fraction of it that is left free: ``"5%"`` or 0.05.
        planned_only: search also what cannot run yet.
        time_limit_s: end after about so many seconds, tracing included, with the fastest plan found
            so far and its gap; the plan says so. Without it, the same call gives the same plan.
        loss_fn: ``loss_fn(outputs, targets)``, when the model does not return its loss.
        batch_dims: the batch dim of each input that does not have it first.
        progress: called with the fraction done and what is being done.

    Returns:
        The decisions, and predictions of a step in seconds and bytes of a device
        (``Plan.estimate``), by the formulas in ``docs/costs.md``.

    Raises:
        UnsupportedModelError: the model cannot be traced or sharded.
        InfeasibleError: nothing fits the memory.
        PlanError, ProfileError: a request that cannot hold, a model that cannot be loaded, or no
            plan within the time limit.
    """
    from autoplan.search.deadline import Deadline

    deadline = Deadline(time_limit_s)
    job = request.make_job(
        subject.describe(model, seq_len, inputs), cluster=cluster, nodes=nodes,
        gpus_per_node=gpus_per_node, global_batch=global_batch, precision=precision,
        optimizer=optimizer, batch_norm=batch_norm, pins=request.make_pins(pins),
        placements=placements, memory_limit=memory_limit, memory_margin=memory_margin,
        planned_only=planned_only,
    )  # fmt: skip
    tell = progress or silent
    case, graph = _traced(job, model, example_inputs, loss_fn, batch_dims, tell)
    job = replace(job, model=replace(job.model, seq_len=case.seq_len))
    tell(_SEARCHING, "searching")
    return searched(graph, job, rest_of(tell, _SEARCHING), deadline)


def compile(
    model: nn.Module | str,
    example_inputs: ExampleInputs | None = None,
    *,
    global_batch: int | None = None,
    plan: Plan | str | Path | None = None,
    cluster: str | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    batch_norm: str | None = None,
    pins: GivenPins = None,
    placements: Mapping[str, object] | None = None,
    memory_limit: str | float | None = None,
    memory_margin: str | float | None = None,
    loss_fn: Callable[..., Any] | None = None,
    batch_dims: Mapping[str, int | None] | None = None,
    seed: int | None = None,
    torch_compile: bool | str = False,
) -> ParallelModule:
    """This rank's part of ``model`` in parallel training; call it on every rank of ``torchrun``.

    Joins the process group if the program has not. Rank 0 plans, or reads the plan, for all ranks;
    its weights count.

    Args:
        model: a module with its weights, or ``pkg.mod:factory``.
        example_inputs: as for ``autoplan.plan``; may be left out with a plan of a zoo model.
        global_batch: samples per optimizer step over all ranks.
        plan: a plan, or the path of a plan file, made elsewhere for this model; the options that
            it decides (``global_batch`` to ``memory_margin``) must then be left out.
        cluster: hardware profile; by default the one that ``autoplan profile`` made of this
            machine, else the shipped one of its devices, the CPU included.
        precision: ``bf16`` by default; ``fp16`` needs a scaler in ``train_step``.
        optimizer: what is planned for, ``adamw`` by default; the caller builds the optimizer.
        batch_norm, pins, placements, memory_limit, memory_margin, loss_fn, batch_dims: as for
            ``autoplan.plan``.
        seed: of all dropouts, whose masks are the same under every plan; that of rank 0 counts, by
            default ``torch.initial_seed()``.
        torch_compile: whether the program's blocks run under ``torch.compile``, or its backend;
            plans are made for eager kernels all the same.

    Returns:
        The module to train: its parameters are this rank's pieces, its ``train_step`` takes
        tensors ``[global_batch / data_world, ...]``.

    Raises:
        UnsupportedModelError, InfeasibleError, PlanError, ProfileError: as ``autoplan.plan``, and
            a plan of another model or of another number of ranks.
    """
    from autoplan import launch, local
    from autoplan.runtime.parallelize import parallelize

    launch.start_process_group()
    options = {"global_batch": global_batch, "cluster": cluster, "precision": precision,
               "optimizer": optimizer, "batch_norm": batch_norm, "pins": pins,
               "placements": placements, "memory_limit": memory_limit,
               "memory_margin": memory_margin}  # fmt: skip
    given = {name: value for name, value in options.items() if value is not None}
    decided = None if plan is None else launch.agree(lambda: _read(plan, given))
    job = decided.job if decided else local.local_job(subject.describe(model, None, None), given)
    case = subject.given(model, job.model, example_inputs, loss_fn)
    _check_weights(case.model)
    graph = captured(case, job, batch_dims)
    if decided is None:
        decided = launch.agree(lambda: local.local_plan(graph, job))
    evaluation = _capture_evaluation(case, job, batch_dims, graph)
    compiler = "inductor" if torch_compile is True else torch_compile or None
    return parallelize(
        case.model,
        graph,
        decided,
        seed=seed,
        evaluation=evaluation,
        forward=forward_of(case, job),
        compiler=compiler,
    )


def explain(
    plan: Plan | str | Path,
    model: nn.Module | str | None = None,
    example_inputs: ExampleInputs | None = None,
    *,
    why_not: GivenPins = None,
    loss_fn: Callable[..., Any] | None = None,
    batch_dims: Mapping[str, int | None] | None = None,
    progress: Progress | None = None,
) -> Explanation:
    """Why a plan won, whether memory binds and what more of it is worth, by planning again.

    Args:
        plan: a plan, or the path of a plan file.
        model: the model that the plan is for; may be left out for a zoo model or a config.json,
            which the plan names. A factory is called only when it is named here.
        example_inputs, loss_fn, batch_dims: as for ``autoplan.plan``.
        why_not: pins to compare the plan with, instead: ``{"tp": 8}``; ``"place:lm_head.*"`` is
            the placement of parameters, as in ``placements`` of ``autoplan.plan``.
        progress: called with the fraction done and what is being done.

    Returns:
        Answers in seconds of a step and bytes of the fullest device, all by planning.

    Raises:
        PlanError: a bad pin, a plan of another model, or a profile that changed since.
    """
    from autoplan.search.what_if import explain_plan

    decided = plan if isinstance(plan, Plan) else load_plan(plan)
    question = request.make_question(why_not)
    job, tell = decided.job, progress or silent
    cluster = request.cluster_of(job)
    if cluster.digest != decided.profile_digest:
        raise PlanError(f"the profile {job.cluster} changed since the plan was made; plan again")
    _, graph = _planned(decided, model, example_inputs, loss_fn, batch_dims, tell)
    return explain_plan(graph, decided, cluster, question, rest_of(tell, _SEARCHING))


def verify(
    plan: Plan | str | Path,
    model: nn.Module | str | None = None,
    example_inputs: ExampleInputs | None = None,
    *,
    ranks: int | None = None,
    loss_fn: Callable[..., Any] | None = None,
    batch_dims: Mapping[str, int | None] | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Runs a plan's program on processes of this machine and compares it with one device.

    Loss, every gradient, and the weights after a step of SGD and of Adam are compared. What is too
    large is cut down first: axes to two ranks, and models by name or config.json to a few small
    layers, so that every way in which the plan runs a block is there.

    Args:
        plan: a plan, or the path of a plan file.
        model, example_inputs, loss_fn, batch_dims: as for ``autoplan.explain``. A module is run as
            it is, so that it must be small.
        ranks: processes; by default two of every axis of the plan.
        progress: called with the fraction done and what is being done.

    Raises:
        PlanError: a plan of another model, a model that cannot be run here, or a program whose
            ranks would wait for each other.
        UnsupportedModelError: a program that cannot run on so few ranks.
    """
    from autoplan.verification.run import verify_plan

    decided = plan if isinstance(plan, Plan) else load_plan(plan)
    tell = progress or silent
    case, graph = _planned(decided, model, example_inputs, loss_fn, batch_dims, tell)
    return verify_plan(
        decided, case, graph, ranks=ranks, batch_dims=batch_dims, tell=rest_of(tell, _SEARCHING)
    )


def calibrate(
    plan: Plan | str | Path,
    model: nn.Module | str | None = None,
    example_inputs: ExampleInputs | None = None,
    *,
    steps: int = 20,
    loss_fn: Callable[..., Any] | None = None,
    batch_dims: Mapping[str, int | None] | None = None,
    progress: Progress | None = None,
) -> Calibrated:
    """Trains by a plan on this machine, as a whole, and corrects the profile it was made with.

    On the ranks of ``torchrun``, which must all call it, or on gloo processes of its own. Weights
    of a model given by name are drawn, and inputs are random; nothing of the model is changed.

    Args:
        plan: a plan, or the path of a plan file.
        model, example_inputs, loss_fn, batch_dims: as for ``autoplan.explain``.
        steps: to time.
        progress: called with the fraction done and what is being done.

    Returns:
        What was measured, how many times as long as predicted each kind of work took, and the
        profile with these corrections, each of whose changed values says so.

    Raises:
        PlanError, ProfileError: a plan of another model, a profile that changed since, or ranks
            that cannot be started here.
    """
    from datetime import UTC, datetime

    from autoplan.calibration.calibrate import calibrate_plan

    decided = plan if isinstance(plan, Plan) else load_plan(plan)
    tell = progress or silent
    case, graph = _planned(decided, model, example_inputs, loss_fn, batch_dims, tell)
    tell(_SEARCHING, f"measuring {decided.mesh.world_size} ranks")
    return calibrate_plan(decided, case, graph, steps=steps, today=datetime.now(UTC).date())


def dry_run(
    plan: Plan | str | Path,
    model: nn.Module | str | None = None,
    example_inputs: ExampleInputs | None = None,
    *,
    loss_fn: Callable[..., Any] | None = None,
    batch_dims: Mapping[str, int | None] | None = None,
) -> Rehearsal:
    """What each rank of a plan would hold and do in a step; nothing is run, and no rank needed.

    Args:
        plan, model, example_inputs, loss_fn, batch_dims: as for ``autoplan.explain``.

    Raises:
        PlanError, UnsupportedModelError: a plan of another model, or one that cannot be run.
    """
    from autoplan.verification.rehearse import rehearse

    decided = plan if isinstance(plan, Plan) else load_plan(plan)
    case, graph = _planned(decided, model, example_inputs, loss_fn, batch_dims, silent)
    return rehearse(decided, case.model, graph)


def _planned(
    plan: Plan,
    model: nn.Module | str | None,
    example_inputs: ExampleInputs | None,
    loss_fn: Callable[..., Any] | None,
    batch_dims: Mapping[str, int | None] | None,
    tell: Progress,
) -> tuple[ModelUnderPlan, OpGraph]:
    """The model that a plan is for, and its graph."""
    source = plan.job.model
    named = subject.named(source) if model is None else model
    case, graph = _traced(plan.job, named, example_inputs, loss_fn, batch_dims, tell)
    if graph.fingerprint != plan.fingerprint:
        raise PlanError(f"the plan was made for another {source.name}: plan this model anew")
    return case, graph


def _traced(
    job: Job,
    model: nn.Module | str,
    example_inputs: ExampleInputs | None,
    loss_fn: Callable[..., Any] | None,
    batch_dims: Mapping[str, int | None] | None,
    tell: Progress,
) -> tuple[ModelUnderPlan, OpGraph]:
    """The model of a job, loaded, and its graph."""
    tell(0.0, f"loading {job.model.name}")
    case = subject.given(model, job.model, example_inputs, loss_fn)
    tell(_TRACING, f"tracing {job.model.name}")
    return case, captured(case, job, batch_dims)


def _capture_evaluation(
    case: ModelUnderPlan, job: Job, batch_dims: Mapping[str, int | None] | None, graph: OpGraph
) -> OpGraph | None:
    """The graph in eval mode, where it may differ and can be traced."""
    from autoplan.runtime.modes import mode_dependent
    from autoplan.trace.evaluation import has_fused_attention, in_evaluation

    if not case.model.training or mode_dependent(graph) is None:
        return None
    with in_evaluation(case.model), suppress(UnsupportedModelError):
        return captured(case, job, batch_dims, unfuses_attention=not has_fused_attention(graph))
    return None


def _read(plan: Plan | str | Path, given: Mapping[str, Any]) -> Plan:
    if given:
        raise PlanError(f"{', '.join(given)}: decided by the plan; leave it out, or plan= itself")
    return plan if isinstance(plan, Plan) else load_plan(plan)


def _check_weights(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise PlanError(
                f"{name} is on the meta device; to run, give the model with its weights, "
                "as a module or by a factory"
            )
