"""Argument and options of ``autoplan plan``: their types, names and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cost_models.optimizers import OPTIMIZERS


def _models(begun: str) -> list[str]:
    """Names that a shell may complete to."""
    from autoplan import zoo

    return [name for name in zoo.names() if name.startswith(begun)]


def _clusters(begun: str) -> list[str]:
    from hardware_profiles.load import names

    return [name for name in names() if name.startswith(begun)]


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A name from `autoplan models`, a config.json, or pkg.mod:factory.",
        autocompletion=_models,
    ),
]
Cluster = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="From `autoplan clusters`, or a TOML file.",
        autocompletion=_clusters,
    ),
]
GlobalBatch = Annotated[int, typer.Option(metavar="N", help="Samples per optimizer step.")]
Nodes = Annotated[int, typer.Option(metavar="N", help="Nodes used.")]
GpusPerNode = Annotated[
    int | None, typer.Option(metavar="N", help="Devices used of each node; default: all.")
]
SeqLen = Annotated[
    int | None, typer.Option(metavar="N", help="Tokens per sample; default: the model's own.")
]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="NAME=8x1024", help="Shape of one input (repeatable)."),
]
Precision = Annotated[str, typer.Option(metavar="NAME", help="bf16, fp16 or fp32.")]
Optimizer = Annotated[str, typer.Option(metavar="NAME", help=f"{', '.join(OPTIMIZERS)}.")]
BatchNorm = Annotated[
    str, typer.Option(metavar="NAME", help="sync or local: whose statistics BatchNorms take.")
]
Pins = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Fix pp, dp, tp, cp, outermost (pp, dp), schedule, stages_per_rank, zero, "
        "replicas, microbatch or recompute (none, full) (repeatable).",
    ),
]
Placements = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GLOB=Shard(0)",
        help="How parameters are stored over tp, or Replicate() (repeatable).",
    ),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(metavar="70GiB", help="Memory used of a device, or 0.9 of it; default: all."),
]
MemoryMargin = Annotated[str, typer.Option(metavar="5%", help="What of it is left free.")]
PlannedOnly = Annotated[
    bool,
    typer.Option(
        "--allow-planned-only",
        help="Search also what cannot run yet.",
    ),
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", help="End after about so long with the best plan found and its gap."
    ),
]
Scaling = Annotated[
    str | None,
    typer.Option(
        metavar="1,2,8 or 1..64", help="Plan on these nodes too, for a scaling curve in the report."
    ),
]
GrowBatch = Annotated[
    bool, typer.Option("--grow-batch", help="Along --scaling, let the batch grow with the nodes.")
]
Limits = Annotated[
    bool,
    typer.Option("--limits", help="Also the largest microbatch and longest sample that fit."),
]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Save the plan.")
]
