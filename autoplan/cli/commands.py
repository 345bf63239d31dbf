"""The commands: ``plan``, ``report``, ``validate``, ``models``, ``clusters``.

Each reads its options, calls one function of the library and prints. Modules that take long to
import are imported by the command that needs them, so that ``--help`` answers at once.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoplan.cli.options import key_values, shapes
from autoplan.cli.validate import validate
from autoplan.errors import PlanError
from autoplan.job import DEFAULT_MEMORY_MARGIN
from cost_models.optimizers import OPTIMIZERS

if TYPE_CHECKING:
    from autoplan.plan import Plan

app = typer.Typer(
    name="autoplan",
    help="Plans, explains and runs the parallel training of PyTorch models.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the report.")]


@app.command()
def plan(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A name from `autoplan models`, a config.json, or pkg.mod:factory.",
        ),
    ],
    *,
    cluster: Annotated[
        str, typer.Option(metavar="NAME", help="From `autoplan clusters`, or a TOML file.")
    ],
    global_batch: Annotated[int, typer.Option(metavar="N", help="Samples per optimizer step.")],
    nodes: Annotated[int, typer.Option(metavar="N", help="Nodes used.")] = 1,
    gpus_per_node: Annotated[
        int | None, typer.Option(metavar="N", help="Devices used of each node; default: all.")
    ] = None,
    seq_len: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens per sample; default: the model's own.")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=8x1024", help="Shape of one input (repeatable)."),
    ] = None,
    precision: Annotated[str, typer.Option(metavar="NAME", help="bf16, fp16 or fp32.")] = "bf16",
    optimizer: Annotated[
        str,
        typer.Option(metavar="NAME", help=f"{', '.join(OPTIMIZERS)}."),
    ] = "adamw",
    pin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Fix dp, tp, zero, microbatch or recompute (none, full, 6) (repeatable).",
        ),
    ] = None,
    place: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB=Shard(0)",
            help="How parameters are stored over tp, or Replicate() (repeatable).",
        ),
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(metavar="70GiB", help="Memory used of a device, or 0.9 of it; default: all."),
    ] = None,
    memory_margin: Annotated[
        str, typer.Option(metavar="5%", help="What of it is left free.")
    ] = f"{DEFAULT_MEMORY_MARGIN:.0%}",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Save the plan.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Plan the training of a model on a cluster."""
    from autoplan import api
    from autoplan.cli.progress import ProgressDisplay, logs_held

    if output is not None and not output.parent.is_dir():
        raise PlanError(f"-o {output}: {output.parent} is not a directory; create it first")
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
            pins=key_values("--pin", pin or ()),
            placements=key_values("--place", place or ()),
            memory_limit=memory_limit,
            memory_margin=memory_margin,
            progress=progress,
        )
    search_s = time.monotonic() - started_s
    if output is not None:
        api.save_plan(found, output)
        print(f"plan saved: {output}", file=sys.stderr)
    _show(found, as_json, search_s)


@app.command()
def report(
    path: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    as_json: Json = False,
) -> None:
    """Show a saved plan and the estimate stored in it."""
    from autoplan import api

    _show(api.load_plan(path), as_json, None)


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


def _show(plan: Plan, as_json: bool, search_s: float | None) -> None:
    if as_json:
        from autoplan.report.summary import summary

        print(json.dumps(summary(plan, search_s=search_s), indent=2, allow_nan=False))
        return
    from autoplan import api

    api.print_report(plan)
