"""``autoplan plan``: the plan of a model on a cluster, with other sizes if they are asked for."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from autoplan.cli import plan_options
from autoplan.cli.files import check_directory
from autoplan.cli.options import key_values, shapes
from autoplan.cli.report import Html, Json, Trace, show
from autoplan.errors import PlanError
from autoplan.job import DEFAULT_MEMORY_MARGIN

if TYPE_CHECKING:
    from autoplan.plan import Plan


def plan(
    model: plan_options.Model,
    *,
    cluster: plan_options.Cluster,
    global_batch: plan_options.GlobalBatch,
    nodes: plan_options.Nodes = 1,
    gpus_per_node: plan_options.GpusPerNode = None,
    seq_len: plan_options.SeqLen = None,
    inputs: plan_options.Inputs = None,
    precision: plan_options.Precision = "bf16",
    optimizer: plan_options.Optimizer = "adamw",
    batch_norm: plan_options.BatchNorm = "sync",
    pin: plan_options.Pins = None,
    place: plan_options.Placements = None,
    memory_limit: plan_options.MemoryLimit = None,
    memory_margin: plan_options.MemoryMargin = f"{DEFAULT_MEMORY_MARGIN:.0%}",
    allow_planned_only: plan_options.PlannedOnly = False,
    time_limit: plan_options.TimeLimit = None,
    scaling: plan_options.Scaling = None,
    grow_batch: plan_options.GrowBatch = False,
    limits: plan_options.Limits = False,
    output: plan_options.Output = None,
    html: Html = None,
    trace: Trace = None,
    as_json: Json = False,
) -> None:
    """Plan the training of a model on a cluster."""
    from autoplan import api, request
    from autoplan.cli.progress import ProgressDisplay, logs_held

    nodes_too = _scaling(scaling, grow_batch=grow_batch)
    request.check_nodes(cluster, nodes_too)
    for option, path in (("-o", output), ("--html", html), ("--trace", trace)):
        check_directory(option, path)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    started_s = time.monotonic()
    with ProgressDisplay() as progress, logs_held():
        found = api.plan(
            model,
            cluster=cluster,
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            global_batch=global_batch,
            seq_len=seq_len,
            inputs=shapes(inputs or ()),
            precision=precision,
            optimizer=optimizer,
            batch_norm=batch_norm,
            pins=key_values("--pin", pin or ()),
            placements=key_values("--place", place or ()),
            memory_limit=memory_limit,
            memory_margin=memory_margin,
            planned_only=allow_planned_only,
            time_limit_s=time_limit,
            progress=progress,
        )
    search_s = time.monotonic() - started_s
    if nodes_too or limits:
        found = _with_outlook(found, nodes_too, grow_batch, limits, time_limit)
    if output is not None:
        api.save_plan(found, output)
        print(f"plan saved: {output}", file=sys.stderr)
    show(found, html=html, trace=trace, as_json=as_json, search_s=search_s)


def _scaling(text: str | None, *, grow_batch: bool) -> tuple[int, ...]:
    """The nodes of ``--scaling``.

    Raises:
        PlanError: they are no numbers, or a batch is to grow along none.
    """
    if text is None:
        if grow_batch:
            raise PlanError("--grow-batch: the batch grows along --scaling; give that too")
        return ()
    from autoplan.sizing.sweeps import values_of

    return values_of("--scaling", text)


def _with_outlook(
    plan: Plan, nodes: tuple[int, ...], grow_batch: bool, limits: bool, time_limit_s: float | None
) -> Plan:
    from autoplan.cli.progress import ProgressDisplay, logs_held
    from autoplan.other_sizes import outlook

    with ProgressDisplay() as progress, logs_held():
        return outlook(
            plan,
            nodes=nodes,
            grow_batch=grow_batch,
            limits=limits,
            time_limit_s=time_limit_s,
            progress=progress,
        )
