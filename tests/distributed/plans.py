"""Plans made by hand, whose decisions are given and whose predictions are empty."""

from __future__ import annotations

from autoplan.job import Job, ModelSource, Precision
from autoplan.plan import Estimate, MeshPlan, Plan, RegionPlan, SearchRecord

_NOTHING = Estimate(
    step_s=0, compute_s=0, exposed_comm_s=0, bubble_s=0, optimizer_s=0, comm_s={},
    tokens_per_s=None, samples_per_s=0, mfu=0, peak_memory_bytes=0, memory_limit_bytes=0,
    stages=(),
)  # fmt: skip


def make_plan(
    fingerprint: str,
    *,
    global_batch: int,
    dp: int = 1,
    tp: int = 1,
    zero: int = 0,
    num_microbatches: int = 1,
    precision: Precision = "fp32",
    regions: tuple[RegionPlan, ...] = (),
) -> Plan:
    return Plan(
        job=Job(
            model=ModelSource(kind="object", name="test"),
            cluster="test",
            nodes=1,
            gpus_per_node=dp * tp,
            global_batch=global_batch,
            precision=precision,
        ),
        fingerprint=fingerprint,
        mesh=MeshPlan(dp=dp, tp=tp),
        zero=zero,
        microbatch=global_batch // (dp * num_microbatches),
        num_microbatches=num_microbatches,
        schedule="none",
        regions=regions,
        estimate=_NOTHING,
        search=SearchRecord(gap=0, lower_bound_s=0, candidates=1, space="by hand"),
        alternatives=(),
        profile_digest="",
    )
