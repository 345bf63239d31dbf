"""The question put to the planner: which model, on what data, with which precision and limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Precision = Literal["fp32", "bf16", "fp16"]
BatchNormMode = Literal["sync", "local"]

DEFAULT_MEMORY_MARGIN = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSource:
    """How to rebuild the model that a plan is for.

    ``kind`` is ``zoo`` (``name`` is a zoo entry), ``config`` (a transformers config.json path),
    ``factory`` (``pkg.mod:function``) or ``object`` (a module given from Python, not rebuildable).
    """

    kind: Literal["zoo", "config", "factory", "object"]
    name: str
    seq_len: int | None = None
    inputs: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Pins:
    """Decisions that the user has taken; None leaves the choice to the planner.

    ``schedule`` and ``stages_per_rank`` are of the pipeline, ``replicas`` of hybrid sharding,
    ``outermost`` of the mesh (``autoplan.plan``).
    """

    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    tp: int | None = None
    zero: int | None = None
    microbatch: int | None = None
    recompute: Literal["none", "full"] | None = None
    schedule: str | None = None
    stages_per_rank: int | None = None
    replicas: int | None = None
    outermost: Literal["pp", "dp"] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One planning problem.

    Attributes:
        cluster: name of a profile in ``hardware_profiles``, or a path to one.
        nodes, gpus_per_node: devices used; their product is the world size.
        global_batch: samples per optimizer step; fixes the mathematics of training.
        memory_margin: fraction of the memory left free for the allocator.
        memory_limit_bytes: what may be used of each device, margin included; None for all of it.
        placements: pairs of a glob of parameter names and ``Replicate()`` or ``Shard(dim)``, the
            placement on the ``tp`` axis in which the parameters are stored; sorted.
        planned_only: also plan what the runtime cannot run yet.
        batch_norm: whether BatchNorms take the statistics of the whole batch (``sync``), or each
            data-parallel rank and microbatch those of its own rows (``local``).
    """

    model: ModelSource
    cluster: str
    nodes: int
    gpus_per_node: int
    global_batch: int
    precision: Precision = "bf16"
    optimizer: str = "adamw"
    pins: Pins = Pins()
    memory_margin: float = DEFAULT_MEMORY_MARGIN
    memory_limit_bytes: int | None = None
    placements: tuple[tuple[str, str], ...] = ()
    planned_only: bool = False
    batch_norm: BatchNormMode = "sync"

    @property
    def world_size(self) -> int:
        return self.nodes * self.gpus_per_node
