"""Plans made by hand, whose decisions are given and whose predictions are empty."""

from __future__ import annotations

from typing import Literal

from autoplan.job import BatchNormMode, Job, ModelSource, Precision
from autoplan.plan import Estimate, MeshPlan, Plan, RegionPlan, SearchRecord, StagePlan

_NOTHING = Estimate(
    step_s=1, compute_s=1, exposed_comm_s=0, bubble_s=0, optimizer_s=0, comm_s={},
    tokens_per_s=None, samples_per_s=0, mfu=0, peak_memory_bytes=0, memory_limit_bytes=1,
    stages=(),
)  # fmt: skip


def make_plan(
    fingerprint: str,
    *,
    global_batch: int,
    pp: int = 1,
    dp: int = 1,
    tp: int = 1,
    zero: int = 0,
    num_microbatches: int = 1,
    precision: Precision = "fp32",
    regions: tuple[RegionPlan, ...] = (),
    schedule: str = "none",
    stages: tuple[StagePlan, ...] = (),
    outermost: Literal["pp", "dp"] = "pp",
    replicas: int = 1,
    batch_norm: BatchNormMode = "sync",
) -> Plan:
    return Plan(
        job=Job(
            model=ModelSource(kind="object", name="test"),
            cluster="test",
            nodes=1,
            gpus_per_node=pp * dp * tp,
            global_batch=global_batch,
            precision=precision,
            batch_norm=batch_norm,
        ),
        fingerprint=fingerprint,
        mesh=MeshPlan(pp=pp, dp=dp, tp=tp, outermost=outermost),
        zero=zero,
        microbatch=global_batch // (dp * num_microbatches),
        num_microbatches=num_microbatches,
        schedule=schedule,
        stages=stages,
        replicas=replicas,
        regions=regions,
        estimate=_NOTHING,
        search=SearchRecord(gap=0, lower_bound_s=0, candidates=1, space="by hand"),
        alternatives=(),
        profile_digest="",
    )
