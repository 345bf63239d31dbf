"""The YAML configuration of Accelerate 1.15 (``accelerate launch --config_file``).

Data parallelism is DDP (ZeRO 0) or FSDP2; a mesh of tensor and hybrid-sharded parallelism goes
through ``parallelism_config``, whose sizes multiply to the number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autoplan.errors import PlanError
from autoplan.export.decisions import Decisions
from autoplan.export.exported import Exported, gathered_weights, heading

RELEASE = "Accelerate 1.15"
_PRECISION = {"bf16": "bf16", "fp16": "fp16", "fp32": "'no'"}


def accelerate(decisions: Decisions) -> Exported:
    """One ``accelerate.yaml``.

    Raises:
        PlanError: the plan has a pipeline; Accelerate has none for training.
    """
    pp = decisions.plan.mesh.pp
    if pp > 1:
        raise PlanError(
            f"--to accelerate: pp={pp}, and Accelerate has no pipelines for training; plan with "
            "--pin pp=1, or use torchtitan or megatron"
        )
    text = "\n".join(_lines(dict(_settings(decisions))))
    return Exported(
        framework=RELEASE,
        files={"accelerate.yaml": f"{heading(RELEASE)}{text}\n"},
        left_out=tuple(_left_out(decisions)),
    )


def _settings(decisions: Decisions) -> Iterator[tuple[str, object]]:
    plan, job = decisions.plan, decisions.plan.job
    uses_fsdp = plan.zero > 0 or plan.mesh.tp > 1
    yield "compute_environment", "LOCAL_MACHINE"
    yield "distributed_type", "FSDP" if uses_fsdp else "MULTI_GPU"
    yield "num_machines", job.nodes
    yield "num_processes", job.world_size
    yield "machine_rank", 0
    yield "mixed_precision", _PRECISION[job.precision]
    if uses_fsdp:
        yield "fsdp_config", dict(_fsdp(decisions))
        yield "parallelism_config", dict(_parallelism(decisions))


def _fsdp(decisions: Decisions) -> Iterator[tuple[str, object]]:
    yield "fsdp_version", 2
    yield "fsdp_reshard_after_forward", "true" if decisions.plan.zero == 3 else "false"
    yield "fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"
    yield "fsdp_activation_checkpointing", "false" if decisions.recompute == "none" else "true"
    yield "fsdp_state_dict_type", "SHARDED_STATE_DICT"


def _parallelism(decisions: Decisions) -> Iterator[tuple[str, object]]:
    plan = decisions.plan
    yield "parallelism_config_dp_replicate_size", plan.replicas if plan.zero else plan.mesh.dp
    yield "parallelism_config_dp_shard_size", decisions.shards if plan.zero else 1
    yield "parallelism_config_tp_size", plan.mesh.tp


def _lines(settings: Mapping[str, object], indent: str = "") -> Iterator[str]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield f"{indent}{name}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{name}: {value}"


def _left_out(decisions: Decisions) -> Iterator[str]:
    plan, mesh = decisions.plan, decisions.plan.mesh
    yield (
        f"the batch size {plan.microbatch} and Accelerator(gradient_accumulation_steps="
        f"{plan.num_microbatches}) in your script, and the optimizer ({plan.job.optimizer})"
    )
    if mesh.tp > 1:
        yield "placements of single parameters on tp: those of transformers' tp_plan are used"
    if plan.zero in (1, 2):
        yield gathered_weights(plan.zero)
    if decisions.recompute in ("some blocks", "operators"):
        yield f"recompute of {decisions.recompute}: FSDP's checkpointing recomputes every block"
