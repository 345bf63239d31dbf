"""``autoplan sweep``: speed and memory by nodes, batch or length."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from autoplan.cli import plan_options
from autoplan.cli.files import check_directory, write
from autoplan.errors import InfeasibleError, PlanError

_VALUES = "1,2,8 or 1..64"


def sweep(
    model: plan_options.Model,
    *,
    cluster: plan_options.Cluster,
    global_batch: Annotated[
        str, typer.Option(metavar=_VALUES, help="Samples per optimizer step, one or several.")
    ],
    nodes: Annotated[
        str, typer.Option(metavar=_VALUES, help="Nodes used, one or several; 1..64 doubles.")
    ] = "1",
    seq_len: Annotated[
        str | None,
        typer.Option(metavar=_VALUES, help="Tokens per sample; default: the model's own."),
    ] = None,
    grow_batch: Annotated[
        bool, typer.Option("--grow-batch", help="Let the batch grow with the nodes.")
    ] = False,
    limits: plan_options.Limits = False,
    precision: plan_options.Precision = "bf16",
    optimizer: plan_options.Optimizer = "adamw",
    time_limit: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="For the search of each plan.")
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the plot as a picture.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of the table.")
    ] = False,
) -> None:
    """Plan along nodes, batch or length.

    Tells what speed and memory become.
    """
    from autoplan import capacity
    from autoplan.cli.progress import ProgressDisplay, logs_held
    from autoplan.report.sweep import picture, print_sweep, summary
    from autoplan.sizing.sweeps import values_of

    check_directory("--svg", svg)
    batches = values_of("--global-batch", global_batch)
    if grow_batch and len(batches) > 1:
        raise PlanError("--grow-batch: give one --global-batch, that of the fewest nodes")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    with ProgressDisplay() as progress, logs_held():
        found = capacity.sweep(
            model,
            cluster=cluster,
            nodes=values_of("--nodes", nodes),
            global_batch=batches,
            seq_len=None if seq_len is None else values_of("--seq-len", seq_len),
            grow_batch=grow_batch,
            limits=limits,
            precision=precision,
            optimizer=optimizer,
            time_limit_s=time_limit,
            progress=progress,
        )
    if svg is not None:
        write("svg", svg, picture(found))
    if as_json:
        print(json.dumps(summary(found), indent=2, allow_nan=False))
    else:
        print_sweep(found)
    if all(point.plan is None for point in found.points):
        raise InfeasibleError(f"no point has a plan: {found.points[0].reason}")
