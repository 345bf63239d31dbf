"""What ``--json`` prints, as types; ``docs/report.schema.json`` is their JSON schema.

Numbers are SI: seconds and bytes. Parts that are those of a plan file have its types
(``autoplan.plan``).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter
from typing_extensions import TypedDict

from autoplan.plan import Alternative, MeshPlan, OpaquePlan, StagePlan, StageTiming
from autoplan.plan_details import BlockFlow, ModuleMemory, SizeLimit


class Model(TypedDict):
    kind: str
    name: str


class Asked(TypedDict):
    """What was asked for; ``pins`` are those that were given."""

    cluster: str
    nodes: int
    gpus_per_node: int
    global_batch: int
    seq_len: int | None
    precision: str
    optimizer: str
    batch_norm: str
    pins: dict[str, int | str]
    placements: dict[str, str]
    memory_margin: float
    memory_limit_bytes: int | None
    planned_only: bool


class OperatorsAgain(TypedDict):
    blocks: list[str]
    operators: list[str]


class Recompute(TypedDict):
    mode: Literal["none", "partial", "full"]
    recomputed_blocks: int
    blocks: int
    operators: list[OperatorsAgain]


class Placed(TypedDict):
    parameter: str
    placement: str


class Memory(TypedDict):
    parameters: int
    master_weights: int
    gradients: int
    optimizer_state: int
    gathered_parameters: int
    activations: int
    transient: int
    communication_buffers: int
    workspace: int
    total: int


class Rank(TypedDict):
    devices: int
    compute_s: float
    memory: Memory
    forward_s: float
    backward_s: float
    bubble_s: float
    held_microbatches: int


class Estimated(TypedDict):
    """``stages`` are the ranks of the pipeline; one without a pipeline."""

    step_s: float
    compute_s: float
    exposed_comm_s: float
    bubble_s: float
    optimizer_s: float
    comm_s: dict[str, float]
    comm_bytes: dict[str, int]
    comm_counts: dict[str, int]
    exposed_by_axis_s: dict[str, float]
    head_s: float
    tokens_per_s: float | None
    samples_per_s: float
    mfu: float
    peak_memory_bytes: int
    memory_limit_bytes: int
    stages: list[Rank]
    timings: list[StageTiming]
    modules: list[ModuleMemory]


class Search(TypedDict):
    """``seconds`` is None for a plan that was read from a file."""

    seconds: float | None
    gap: float
    lower_bound_s: float
    candidates: int
    space: str


class RankOverStep(TypedDict):
    """``moments`` are seconds with the activations held then; they change evenly in between."""

    rank: int
    always_bytes: int
    passing_bytes: int
    activations_bytes: int
    moments: list[tuple[float, int]]


class ScaledPoint(TypedDict):
    """``scaling`` is T_n / (n T_1); None, as are the seconds, where there is no plan."""

    nodes: int
    devices: int
    global_batch: int
    samples_per_s: float | None
    step_s: float | None
    reason: str
    scaling: float | None


class OutlookShown(TypedDict):
    """Other sizes of the same training, as far as they were asked for."""

    scaling: list[ScaledPoint]
    largest_microbatch: SizeLimit | None
    longest_sequence: SizeLimit | None


class Profile(TypedDict):
    """``values`` counts the profile's values by where they are from."""

    device: str
    changed: bool
    values: dict[str, int]
    price_per_gpu_hour_usd: float | None


class Trust(TypedDict):
    """Of the model's predictions of published steps on the device."""

    runs: int
    median: float
    p90: float
    within_error: list[str]


class Summary(TypedDict):
    """``profile`` and ``trust`` are None where they are not known, ``outlook`` where not asked."""

    model: Model
    job: Asked
    mesh: MeshPlan
    zero: int
    replicas: int
    microbatch: int
    num_microbatches: int
    schedule: str
    stages_per_rank: int
    stages: list[StagePlan]
    recompute: Recompute
    placements: list[Placed]
    estimate: Estimated
    search: Search
    alternatives: list[Alternative]
    warnings: list[str]
    opaque: list[OpaquePlan]
    flows: list[BlockFlow]
    outlook: OutlookShown | None
    memory_over_step: list[RankOverStep]
    profile: Profile | None
    trust: Trust | None


ADAPTER = TypeAdapter(
    tuple[Summary], config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
)
"""Checks a tuple of one summary."""


def schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of one summary."""
    of_tuple = ADAPTER.json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **of_tuple["prefixItems"][0],
        "$defs": of_tuple["$defs"],
    }
