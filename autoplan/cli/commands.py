"""The commands: ``plan``, ``report``, ``doctor``, ``explain``, ``verify`` and more, and lists.

Each reads its options, calls one function of the library and prints. Modules that take long to
import are imported by the command that needs them, so that ``--help`` answers at once.
"""

from __future__ import annotations

import os
import sys
import time

import typer

from autoplan.cli import plan_options
from autoplan.cli.compare import compare
from autoplan.cli.doctor import doctor
from autoplan.cli.explain import explain
from autoplan.cli.export import export
from autoplan.cli.options import key_values, shapes
from autoplan.cli.profile import profile
from autoplan.cli.report import Html, Json, Trace, check_directory, report, show
from autoplan.cli.size import size
from autoplan.cli.sweep import sweep
from autoplan.cli.validate import validate
from autoplan.cli.verify import verify
from autoplan.job import DEFAULT_MEMORY_MARGIN

app = typer.Typer(
    name="autoplan",
    help="Plans, explains and runs the parallel training of PyTorch models.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command()
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
    output: plan_options.Output = None,
    html: Html = None,
    trace: Trace = None,
    as_json: Json = False,
) -> None:
    """Plan the training of a model on a cluster."""
    from autoplan import api
    from autoplan.cli.progress import ProgressDisplay, logs_held

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
    if output is not None:
        api.save_plan(found, output)
        print(f"plan saved: {output}", file=sys.stderr)
    show(found, html=html, trace=trace, as_json=as_json, search_s=search_s)


app.command()(report)
app.command()(compare)
app.command()(size)
app.command()(sweep)
app.command()(doctor)
app.command()(explain)
app.command()(export)
app.command()(profile)
app.command()(verify)
app.command()(validate)


@app.command()
def models() -> None:
    """List the models that can be planned by name."""
    from autoplan import zoo

    for name in zoo.names():
        print(name)


@app.command()
def clusters() -> None:
    """List the clusters that can be planned for by name."""
    from hardware_profiles.load import load, names

    width = max(map(len, names()))
    for name in names():
        print(f"{name:{width}}  {load(name).description}")
