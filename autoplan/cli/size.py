"""``autoplan size``: the smallest and cheapest cluster for so many tokens in so many days."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoplan.cli import plan_options
from autoplan.cli.files import check_directory
from autoplan.errors import InfeasibleError, PlanError

if TYPE_CHECKING:
    from autoplan.sizing.sizes import Sizing


def size(
    model: plan_options.Model,
    *,
    tokens: Annotated[str, typer.Option(metavar="1T", help="To train on: 300B, 1T, 1.5e12.")],
    days: Annotated[float, typer.Option(metavar="N", help="In which to train on them.")],
    clusters: Annotated[
        str | None,
        typer.Option(
            metavar="A,B", help="From `autoplan clusters`, or TOML files; default: all of GPUs."
        ),
    ] = None,
    max_nodes: Annotated[
        int | None, typer.Option(metavar="N", help="Of a cluster; default: what its profile says.")
    ] = None,
    global_batch: Annotated[
        int | None,
        typer.Option(metavar="N", help="Samples per step; default: those of 4M tokens."),
    ] = None,
    seq_len: plan_options.SeqLen = None,
    precision: plan_options.Precision = "bf16",
    optimizer: plan_options.Optimizer = "adamw",
    time_limit: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="For each cluster; its rows then say their gap."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Save the plans of all rows here."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of the table.")
    ] = False,
) -> None:
    """Find the clusters that train a model in time.

    The fewest nodes of each; which are the fewest devices, and which the cheapest.
    """
    from autoplan import capacity
    from autoplan.cli.progress import ProgressDisplay, logs_held
    from autoplan.report.sizing import print_sizing, summary

    check_directory("-o", output)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    with ProgressDisplay() as progress, logs_held():
        found = capacity.size(
            model,
            tokens=tokens,
            days=days,
            clusters=_names(clusters),
            max_nodes=max_nodes,
            global_batch=global_batch,
            seq_len=seq_len,
            precision=precision,
            optimizer=optimizer,
            time_limit_s=time_limit,
            progress=progress,
        )
    if output is not None:
        _save(found, output)
    if as_json:
        print(json.dumps(summary(found), indent=2, allow_nan=False))
    else:
        print_sizing(found)
    if found.smallest is None:
        raise InfeasibleError(
            f"no cluster trains on {tokens} tokens in {days:g} days; "
            "allow more days, more --max-nodes or other --clusters"
        )


def _names(text: str | None) -> list[str] | None:
    """``a, b`` as a list.

    Raises:
        PlanError: there is no name in it.
    """
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise PlanError("--clusters: give names from `autoplan clusters`, separated by commas")
    return list(dict.fromkeys(names))


def _save(found: Sizing, directory: Path) -> None:
    from autoplan import plan_io
    from autoplan.report.sizing import file_name

    directory.mkdir(exist_ok=True)
    plans = [each for one in found.clusters for each in (one.smallest, *one.others) if each]
    for sized in plans:
        plan_io.save(sized.plan, directory / file_name(sized))
    print(f"{len(plans)} plans saved: {directory}", file=sys.stderr)
