"""The commands: ``plan``, ``report``, ``models``, ``clusters``, ``validate``.

Each reads its options, calls one function of the library and prints. Modules that take long to
import are imported by the command that needs them, so that ``--help`` answers at once.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoplan.cli.options import key_values, shapes
from autoplan.cli.validate import validate
from autoplan.errors import PlanError

if TYPE_CHECKING:
    from autoplan.plan import Plan

app = typer.Typer(
    name="autoplan",
    help="Plans, explains and runs the parallel training of PyTorch models.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.command()(validate)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the report.")]


@app.command()
def plan(
    model: Annotated[
        str,
        typer.Argument(help="A name from `autoplan models`, a config.json, or pkg.mod:factory."),
    ],
    *,
    cluster: Annotated[str, typer.Option(help="A name from `autoplan clusters`, or a TOML file.")],
    global_batch: Annotated[int, typer.Option(help="Samples per optimizer step.")],
    nodes: Annotated[int, typer.Option(help="Nodes used.")] = 1,
    gpus_per_node: Annotated[
        int | None, typer.Option(help="Devices used of each node; default: all.")
    ] = None,
    seq_len: Annotated[
        int | None, typer.Option(help="Tokens per sample; default: the model's own.")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", help="Shape of one input, name=8x1024 (repeatable)."),
    ] = None,
    precision: Annotated[str, typer.Option(help="bf16, fp16 or fp32.")] = "bf16",
    optimizer: Annotated[str, typer.Option(help="The optimizer planned for.")] = "adamw",
    pin: Annotated[
        list[str] | None,
        typer.Option(help="Fix a decision: dp=2, tp=4, zero=3, recompute=full ... (repeatable)."),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Save the plan.")] = None,
    as_json: Json = False,
) -> None:
    """Plan the training of MODEL on a cluster, and report what was decided and why."""
    from autoplan import api
    from autoplan.cli.progress import ProgressDisplay

    if output is not None and not output.parent.is_dir():
        raise PlanError(f"-o {output}: {output.parent} is not a directory; create it first")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    started_s = time.monotonic()
    with ProgressDisplay() as progress:
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
            progress=progress,
        )
    search_s = time.monotonic() - started_s
    if output is not None:
        api.save_plan(found, output)
    _show(found, as_json, search_s)


@app.command()
def report(
    path: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    as_json: Json = False,
) -> None:
    """Show a saved plan and the estimate stored in it."""
    from autoplan import api

    _show(api.load_plan(path), as_json, None)


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
