"""Turns what a user asks for into a ``Job``, refusing by name what no planner could satisfy.

Nothing here looks at the model; what depends on it (heads, layers) is the planner's to refuse.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import get_args

from autoplan import amounts
from autoplan.errors import PlanError, ProfileError
from autoplan.explanation import PLACE, Question
from autoplan.job import DEFAULT_MEMORY_MARGIN, BatchNormMode, Job, ModelSource, Pins, Precision
from autoplan.search.overrides import given_placements
from autoplan.search.pins import SCHEDULES, check_pins
from cost_models.optimizers import OPTIMIZERS
from hardware_profiles.load import ProfileFault, load
from hardware_profiles.sharing import in_use
from hardware_profiles.spec import ClusterSpec

PIN_NAMES = tuple(field.name for field in fields(Pins))
_RANGES = {"zero": (0, 3)}
_NAMES = {"schedule": SCHEDULES, "outermost": ("pp", "dp"), "recompute": ("none", "full")}
LARGEST_BATCH = 10**8
"""Sizes of tensors at the global batch must fit 64 bits."""


def load_cluster(name_or_path: str | Path) -> ClusterSpec:
    """The profile of a cluster.

    Raises:
        ProfileError: unknown or malformed.
    """
    try:
        return load(name_or_path)
    except ProfileFault as fault:
        raise ProfileError(str(fault)) from None


def cluster_of(job: Job) -> ClusterSpec:
    """The cluster of a job with as many devices of each node at work as the job uses.

    Raises:
        ProfileError: the profile is unknown or malformed.
    """
    return in_use(load_cluster(job.cluster), job.gpus_per_node)


def make_pins(values: Mapping[str, int | str] | Pins | None) -> Pins:
    """Pins from names and values, which may be text.

    Raises:
        PlanError: an unknown name, or a value that the pin cannot take.
    """
    if isinstance(values, Pins):
        return values
    read: dict[str, int | str] = {}
    for name, value in _named(values).items():
        _check_known("pin", name, PIN_NAMES)
        read[name] = _pin(name, value)
    return Pins(**read)  # pyright: ignore[reportArgumentType]


def _named(values: Mapping[str, int | str] | None) -> Mapping[str, int | str]:
    if values is not None and not isinstance(values, Mapping):
        raise PlanError(
            f"pins are names with values, as in {{'tp': 2}}, not a {type(values).__name__}"
        )
    return values or {}


def make_question(values: Mapping[str, int | str] | Pins | None) -> Question | None:
    """The question that pins and placements (``place:GLOB``) are; None where there are none.

    Raises:
        PlanError: as ``make_pins``, and for what is no placement.
    """
    if not values:
        return None
    if isinstance(values, Pins):
        return Question(pins=values)
    values = _named(values)
    pins = {name: value for name, value in values.items() if not str(name).startswith(PLACE)}
    placed = {n.removeprefix(PLACE): value for n, value in values.items() if n not in pins}
    return Question(pins=make_pins(pins), placements=given_placements(placed))


def make_job(
    source: ModelSource,
    *,
    cluster: str,
    nodes: int,
    gpus_per_node: int | None,
    global_batch: int,
    precision: str,
    optimizer: str,
    pins: Pins,
    memory_limit: str | float | None = None,
    memory_margin: str | float = DEFAULT_MEMORY_MARGIN,
    placements: Mapping[str, object] | None = None,
    planned_only: bool = False,
    batch_norm: str = "sync",
) -> Job:
    """The job, on all devices of a node unless ``gpus_per_node`` says how many.

    Raises:
        ProfileError: the cluster's profile is unknown or malformed.
        PlanError: more devices than the cluster has, a value that makes no sense, or pins that
            hold for no model.
    """
    profile = load_cluster(cluster)
    devices = profile.gpus_per_node if gpus_per_node is None else gpus_per_node
    _check_range("nodes", nodes, profile.max_nodes, cluster)
    _check_range("gpus per node", devices, profile.gpus_per_node, cluster)
    if global_batch < 1:
        raise PlanError(f"global batch {global_batch}: give at least one sample a step")
    if global_batch > LARGEST_BATCH:
        raise PlanError(f"global batch {global_batch}: give at most {LARGEST_BATCH} samples a step")
    _check_known("precision", precision, get_args(Precision))
    _check_known("optimizer", optimizer, OPTIMIZERS)
    _check_known("batch_norm", batch_norm, get_args(BatchNormMode))
    job = Job(
        model=source,
        cluster=cluster,
        nodes=nodes,
        gpus_per_node=devices,
        global_batch=global_batch,
        precision=precision,  # pyright: ignore[reportArgumentType]
        optimizer=optimizer,
        pins=pins,
        memory_limit_bytes=None
        if memory_limit is None
        else amounts.memory_limit(memory_limit, profile.device.memory_bytes, profile.device.name),
        memory_margin=amounts.margin(memory_margin),
        placements=given_placements(placements),
        planned_only=planned_only,
        batch_norm=batch_norm,  # pyright: ignore[reportArgumentType]
    )
    check_pins(job)
    return job


def check_nodes(cluster: str, nodes: Iterable[int]) -> None:
    """Refuses numbers of nodes that a cluster does not have.

    Raises:
        ProfileError, PlanError: as ``make_job``.
    """
    most = load_cluster(cluster).max_nodes
    for count in nodes:
        _check_range("nodes", count, most, cluster)


def _check_range(what: str, value: int, most: int, cluster: str) -> None:
    if not 1 <= value <= most:
        raise PlanError(f"{value} {what}: {cluster} has 1 to {most}")


def _check_known(what: str, name: object, known: Iterable[str]) -> None:
    known = tuple(known)
    if not isinstance(name, str):
        raise PlanError(f"{what} {name!r} is no name; choose from {', '.join(known)}")
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise PlanError(f"unknown {what} {name!r}; {hint}choose from {', '.join(known)}")


def _pin(name: str, value: int | str) -> int | str:
    if name in _NAMES:
        _check_known(f"pin {name}", value, _NAMES[name])
        return value
    return _integer(name, value)


def _integer(name: str, value: int | str) -> int:
    smallest, largest = _RANGES.get(name, (1, 10**6))
    text = str(value)
    if not (text.isascii() and text.isdecimal() and smallest <= int(text) <= largest):
        raise PlanError(f"pin {name}={value}: expected a number from {smallest} to {largest}")
    return int(text)
