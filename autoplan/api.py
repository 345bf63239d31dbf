"""The whole way in one screen: load the model, capture its graph, plan, emit, run.

PyTorch is imported by the functions that need it, so that plans can be read and reported without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoplan import plan_io, request
from autoplan.errors import PlanError
from autoplan.job import Pins
from autoplan.plan import Plan

if TYPE_CHECKING:
    from torch import nn

    from autoplan.runtime import ParallelModule
    from autoplan.subject import Subject
    from autoplan.trace.graph import OpGraph

Progress = Callable[[float, str], None]
ExampleInputs = tuple[Any, ...] | Mapping[str, Any]
GivenPins = Mapping[str, int | str] | Pins | None

load_plan = plan_io.load
save_plan = plan_io.save


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
    pins: GivenPins = None,
    loss_fn: Callable[..., Any] | None = None,
    batch_dims: Mapping[str, int | None] | None = None,
    progress: Progress | None = None,
) -> Plan:
    """The best way to train ``model`` on ``cluster``, and what it is predicted to cost.

    Args:
        model: a module (on any device, ``meta`` included), a zoo name, the path of a transformers
            ``config.json``, or ``pkg.mod:factory``.
        example_inputs: arguments of a module, as a tuple or as a dict of keyword arguments, at a
            batch of two or more; not for models given by name, which bring their own.
        cluster: name of a hardware profile, or path of a ``.toml`` file.
        nodes, gpus_per_node: devices used; all of one node by default.
        global_batch: samples per optimizer step.
        seq_len, inputs: tokens per sample, and shapes of inputs, of a model given by name.
        pins: decisions already taken: ``{"tp": 2, "recompute": "full"}``.
        loss_fn: ``loss_fn(outputs, targets)``, when the model does not return its loss.
        batch_dims: the batch dim of each input that does not have it first.
        progress: called with the fraction done and what is being done.

    Raises:
        UnsupportedModelError: the model cannot be loaded, traced or sharded.
        InfeasibleError: nothing fits the memory.
        PlanError, ProfileError: a request that cannot hold.
    """
    profile = request.load_cluster(cluster)
    job = request.make_job(
        request.describe(model, seq_len, inputs),
        profile,
        cluster=cluster,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        global_batch=global_batch,
        precision=precision,
        optimizer=optimizer,
        pins=request.make_pins(pins),
    )
    subject = load_subject(job.model, model, example_inputs, loss_fn)
    graph = _capture(subject, batch_dims, precision)
    return plan_job(graph, job, profile, progress=progress)


def compile(
    model: nn.Module | str,
    example_inputs: ExampleInputs | None = None,
    *,
    global_batch: int | None = None,
    plan: Plan | str | Path | None = None,
    cluster: str | None = None,
    precision: str = "bf16",
    optimizer: str = "adamw",
    pins: GivenPins = None,
    loss_fn: Callable[..., Any] | None = None,
    batch_dims: Mapping[str, int | None] | None = None,
) -> ParallelModule:
    """This rank's part of ``model`` in parallel training; call it on every rank of ``torchrun``.

    Joins the process group if the program has not. Rank 0 plans, or reads the plan, for all ranks;
    its weights count.

    Args:
        plan: a plan, or the path of a plan file, made elsewhere for this model; then the options
            that a plan decides (``global_batch``, ``cluster``, ``precision``, ``optimizer``,
            ``pins``) must be left alone.
        cluster: hardware profile; by default the one of the devices that we run on.

    The other arguments are those of ``autoplan.plan``.

    Raises:
        UnsupportedModelError, InfeasibleError, PlanError, ProfileError: as ``autoplan.plan``, and
            a plan of another model or of another number of ranks.
    """


def print_report(plan: Plan) -> None:
    """Prints what was decided, why, and what it is predicted to cost."""
