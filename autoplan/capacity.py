"""How many devices a training needs, and how its speed follows its sizes: every answer is plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from autoplan import amounts, request, subject
from autoplan.captured import captured
from autoplan.errors import PlanError
from autoplan.job import Job, ModelSource, Pins
from autoplan.plurals import counted
from autoplan.progress import Progress, rest_of, silent
from autoplan.traced_job import SEARCHING, TRACING, TracedJob

if TYPE_CHECKING:
    from autoplan.sizing.sizes import Sizing
    from autoplan.sizing.sweeps import Sweep


DEFAULT_BATCH_TOKENS = 2**22
"""Tokens of a step where no batch is given."""


def size(
    model: str,
    *,
    tokens: str | float,
    days: float,
    clusters: Sequence[str] | None = None,
    max_nodes: int | None = None,
    global_batch: int | None = None,
    seq_len: int | None = None,
    precision: str = "bf16",
    optimizer: str = "adamw",
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> Sizing:
    """The smallest and cheapest cluster that trains ``model`` on so many tokens in so many days.

    Args:
        model: as for ``autoplan.plan``, by name.
        tokens: a number, or text such as ``1T``.
        days: of training without a break.
        clusters: names of profiles or paths of ``.toml`` files; by default all that come with the
            package and have GPUs.
        max_nodes: of a cluster; by default what its profile says.
        global_batch: samples per step; by default the largest power of two with at most
            ``DEFAULT_BATCH_TOKENS`` tokens.
        seq_len: tokens per sample; by default the model's own.
        precision, optimizer: as for ``autoplan.plan``.
        time_limit_s: after which the searches on one cluster end with what they have.
        progress: called with the fraction done and what is being done.

    Raises:
        PlanError, ProfileError: a question that has no answer, or a model that cannot be loaded.
        UnsupportedModelError: the model cannot be traced or sharded.
    """
    from autoplan.sizing.clusters import Site, size_all
    from autoplan.sizing.goal import Goal

    goal = Goal(tokens=amounts.count("tokens", tokens), days=_days(days))
    if max_nodes is not None and max_nodes < 1:
        raise PlanError(f"max nodes {max_nodes}: give at least one")
    profiles = {name: request.load_cluster(name) for name in clusters or _shipped()}
    tell = progress or silent
    source = subject.describe(model, seq_len, None)
    tell(0.0, f"loading {model}")
    case = subject.load(source)
    if case.seq_len is None:
        raise PlanError(
            f"{model} has no sequence of tokens to count; plan it with several --nodes instead"
        )
    source = replace(source, seq_len=case.seq_len)
    batch = global_batch or 1 << (max(1, DEFAULT_BATCH_TOKENS // case.seq_len).bit_length() - 1)
    sites = [
        Site(
            job=_job(source, name, batch, precision, optimizer),
            cluster=profile,
            most_nodes=min(max_nodes or profile.max_nodes, profile.max_nodes),
        )
        for name, profile in profiles.items()
    ]
    tell(TRACING, f"tracing {model}")
    graph = captured(case, sites[0].job)
    return size_all(
        graph, sites, goal, progress=rest_of(tell, SEARCHING), time_limit_s=time_limit_s
    )


def sweep(
    model: str,
    *,
    cluster: str,
    nodes: Sequence[int] = (1,),
    global_batch: Sequence[int],
    seq_len: Sequence[int] | None = None,
    grow_batch: bool = False,
    limits: bool = False,
    precision: str = "bf16",
    optimizer: str = "adamw",
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Plans along the one size of which several values are given.

    Args:
        model: as for ``autoplan.plan``, by name.
        cluster: name of a profile, or path of a ``.toml`` file.
        nodes, global_batch, seq_len: values; one of them may have several.
        grow_batch: the batch, given for the first number of nodes, grows with them.
        limits: look also for the largest microbatch on the last plan's mesh, and for the longest
            samples on its devices.
        precision, optimizer: as for ``autoplan.plan``.
        time_limit_s: of the search of each plan.
        progress: called with the fraction done and what is being done.

    Raises:
        PlanError, ProfileError: a question that has no answer, or a model that cannot be loaded.
        UnsupportedModelError: the model cannot be traced or sharded.
    """
    from autoplan.sizing.sweeps import Sweep, largest_microbatch, point_of

    tell = progress or silent
    lengths: Sequence[int | None] = seq_len or (None,)
    over = _swept({"nodes": nodes, "global_batch": global_batch, "seq_len": lengths})
    source = subject.describe(model, None, None)
    first = _job(source, cluster, global_batch[0], precision, optimizer)
    _job(source, cluster, max(global_batch), precision, optimizer, max(nodes))
    points, made, job = [], None, None
    total = len(nodes) * len(global_batch) * len(lengths)
    for length in lengths:
        made = TracedJob(replace(first, model=replace(source, seq_len=length)), tell)
        for count, batch in ((count, batch) for count in nodes for batch in global_batch):
            grown = batch * count // nodes[0] if grow_batch else batch
            job = replace(made.job, nodes=count, global_batch=grown)
            told = f"planning on {counted(count, 'node')}, batch {grown}"
            tell(SEARCHING + (1 - SEARCHING) * len(points) / total, told)
            points.append(point_of(made.series, job, time_limit_s))
    found = Sweep(over=over, points=tuple(points))  # pyright: ignore[reportArgumentType]
    if limits and made and job:
        last = points[-1].plan
        tell(1.0, "looking for the largest that fits")
        return replace(
            found,
            largest_microbatch=last and largest_microbatch(made.series, last),
            longest_sequence=made.longest_sequence(job),
        )
    return found


def _swept(values: dict[str, Sequence[int | None]]) -> str:
    """The size of which there are several values; nodes where there is none.

    Raises:
        PlanError: there are two.
    """
    several = [name for name, given in values.items() if len(given) > 1]
    if len(several) > 1:
        raise PlanError(
            f"{' and '.join(several)} have several values each; sweep over one at a time"
        )
    return several[0] if several else "nodes"


def _shipped() -> list[str]:
    """Profiles of clusters of GPUs that come with the package."""
    from hardware_profiles.load import load, names

    return [name for name in names() if load(name).backend == "nccl"]


def _days(days: float) -> float:
    if not 0 < days < float("inf"):
        raise PlanError(f"{days:g} days: give a number above 0")
    return days


def _job(
    source: ModelSource,
    cluster: str,
    global_batch: int,
    precision: str,
    optimizer: str,
    nodes: int = 1,
) -> Job:
    return request.make_job(
        source,
        cluster=cluster,
        nodes=nodes,
        gpus_per_node=None,
        global_batch=global_batch,
        precision=precision,
        optimizer=optimizer,
        pins=Pins(),
    )
