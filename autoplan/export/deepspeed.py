"""The JSON configuration of DeepSpeed 0.19 (``deepspeed/runtime/config.py``).

Pipelines are written in code there (``PipelineModule``), so their stages are only told. Nearest to
hybrid sharding is ZeRO++'s secondary partition (hpZ), which needs ZeRO 3.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from autoplan.export.decisions import Decisions
from autoplan.export.exported import Exported

RELEASE = "DeepSpeed 0.19"


def deepspeed(decisions: Decisions) -> Exported:
    """One ``ds_config.json``."""
    return Exported(
        framework=RELEASE,
        files={"ds_config.json": json.dumps(dict(_settings(decisions)), indent=2) + "\n"},
        left_out=tuple(_left_out(decisions)),
    )


def _settings(decisions: Decisions) -> Iterator[tuple[str, object]]:
    plan = decisions.plan
    yield "train_batch_size", plan.job.global_batch
    yield "train_micro_batch_size_per_gpu", plan.microbatch
    yield "gradient_accumulation_steps", plan.num_microbatches
    if plan.job.precision in ("bf16", "fp16"):
        yield plan.job.precision, {"enabled": True}
        yield "communication_data_type", "fp32"
        yield "data_types", {"grad_accum_dtype": "fp32"}
    yield "zero_optimization", dict(_zero(decisions))
    if plan.mesh.tp > 1:
        yield "tensor_parallel", {"autotp_size": plan.mesh.tp}


def _zero(decisions: Decisions) -> Iterator[tuple[str, object]]:
    plan = decisions.plan
    yield "stage", plan.zero
    if plan.zero:
        yield "overlap_comm", True
    if plan.zero == 3 and plan.replicas > 1:
        yield "zero_hpz_partition_size", decisions.shards


def _left_out(decisions: Decisions) -> Iterator[str]:
    plan, mesh = decisions.plan, decisions.plan.mesh
    yield f"the optimizer ({plan.job.optimizer}): hand it to deepspeed.initialize"
    if mesh.pp > 1:
        yield (
            f"the pipeline: PipelineModule(num_stages={mesh.pp}) in your code, stages of "
            f"{', '.join(map(str, decisions.stage_sizes))} layers, 1F1B, at ZeRO 0 or 1"
        )
        if plan.schedule != "1f1b":
            yield f"the schedule {plan.schedule}"
    if mesh.tp > 1:
        yield "placements of single parameters on tp: AutoTP has its own"
    if plan.replicas > 1 and plan.zero:
        second = ", weights a second time among those (hpZ)" if plan.zero == 3 else ""
        yield f"hybrid sharding over {decisions.shards} ranks: states are split over all{second}"
    if decisions.recompute != "none":
        yield (
            f"recompute ({decisions.recompute}): call deepspeed.checkpointing or "
            "gradient_checkpointing_enable in your model"
        )
