"""Arguments of Megatron-LM's pretraining scripts (``megatron/training/arguments.py``, core 0.16).

Megatron's layers have tensor-parallel placements of their own (columns, then rows), so that only
the degree and whether the sequence is split are handed on. ZeRO 3, and ZeRO 2, which its
distributed optimizer does not have, become Megatron-FSDP (``--data-parallel-sharding-strategy``).
"""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.export.decisions import Decisions
from autoplan.export.exported import Exported, heading

RELEASE = "Megatron-LM (core 0.16)"
_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
_PRECISION = {"bf16": ["--bf16"], "fp16": ["--fp16"], "fp32": []}
_OPTIMIZERS = {"adamw": "adam", "adam": "adam", "sgd": "sgd"}


def megatron(decisions: Decisions) -> Exported:
    """A shell file that sets ``PARALLEL_ARGS`` for ``pretrain_gpt.py`` and the like."""
    lines = "\n".join(f"    {' '.join(argument)}" for argument in _arguments(decisions))
    text = heading(f"{RELEASE}: torchrun ... pretrain_gpt.py \"${{MODEL_ARGS[@]}}\" "
                   '"${PARALLEL_ARGS[@]}"')  # fmt: skip
    return Exported(
        framework=RELEASE,
        files={"megatron.sh": f"{text}PARALLEL_ARGS=(\n{lines}\n)\n"},
        left_out=tuple(_left_out(decisions)),
    )


def layout(decisions: Decisions) -> str:
    """``--pipeline-model-parallel-layout``: E embedding, t layer, L loss, | between stages."""
    sizes = decisions.stage_sizes
    stages = ["t" * size for size in sizes]
    stages[0] = "E" + stages[0]
    stages[-1] += "L"
    return "|".join(stages)


def _arguments(decisions: Decisions) -> Iterator[list[str]]:
    plan = decisions.plan
    mesh, job = plan.mesh, plan.job
    if job.model.seq_len is not None:
        yield ["--seq-length", str(job.model.seq_len)]
    yield ["--micro-batch-size", str(plan.microbatch)]
    yield ["--global-batch-size", str(job.global_batch)]
    yield ["--tensor-model-parallel-size", str(mesh.tp)]
    yield ["--pipeline-model-parallel-size", str(mesh.pp)]
    if mesh.tp > 1 and decisions.splits_sequence:
        yield ["--sequence-parallel"]
    if mesh.pp > 1 and decisions.is_one_stack:
        yield ["--pipeline-model-parallel-layout", f"'{layout(decisions)}'"]
    if mesh.pp > 1 and mesh.outermost == "dp":
        yield ["--use-tp-pp-dp-mapping"]
    yield from _data_parallel(decisions)
    yield from _recompute(decisions)
    if _PRECISION[job.precision]:
        yield _PRECISION[job.precision]
    if job.optimizer in _OPTIMIZERS:
        yield ["--optimizer", _OPTIMIZERS[job.optimizer]]


def _data_parallel(decisions: Decisions) -> Iterator[list[str]]:
    plan = decisions.plan
    if plan.zero:
        yield ["--use-distributed-optimizer"]
    if plan.zero in _SHARDING:
        yield ["--use-megatron-fsdp"]
        yield ["--data-parallel-sharding-strategy", _SHARDING[plan.zero]]
        yield ["--no-gradient-accumulation-fusion"]
        yield ["--ckpt-format", "fsdp_dtensor"]
    if plan.mesh.dp > 1:
        yield ["--overlap-grad-reduce"]
        if plan.zero:
            yield ["--overlap-param-gather"]
    if plan.zero and plan.replicas > 1:
        yield ["--num-distributed-optimizer-instances", str(plan.replicas)]


def _recompute(decisions: Decisions) -> Iterator[list[str]]:
    if decisions.recompute == "full":
        yield ["--recompute-granularity", "full"]
        yield ["--recompute-method", "uniform"]
        yield ["--recompute-num-layers", "1"]
    elif decisions.recompute == "some blocks":
        yield ["--recompute-granularity", "full"]
        yield ["--recompute-method", "block"]
        yield ["--recompute-num-layers", str(max(decisions.recomputed_by_stage))]
    elif decisions.recompute == "operators":
        yield ["--recompute-granularity", "selective"]
        yield ["--recompute-modules", "core_attn"]


def _left_out(decisions: Decisions) -> Iterator[str]:
    plan = decisions.plan
    yield "the model's sizes, data, learning rate and checkpoints: MODEL_ARGS are yours"
    if plan.mesh.tp > 1:
        yield "placements of parameters and operators on tp: Megatron's layers have their own"
    if plan.mesh.pp > 1 and plan.schedule not in ("1f1b", "interleaved_1f1b"):
        yield f"the schedule {plan.schedule}: Megatron runs 1F1B, interleaved or not"
    if plan.mesh.pp > 1 and not decisions.is_one_stack:
        yield "where stages are cut: the layers are of several stacks, Megatron cuts each evenly"
    if decisions.recompute == "some blocks" and len(set(decisions.recomputed_by_stage)) > 1:
        yield (
            f"recomputed layers by stage, {', '.join(map(str, decisions.recomputed_by_stage))}: "
            "Megatron has one number for all stages, the largest is given"
        )
    if decisions.recompute == "operators":
        yield "which operators run again: selective recompute of the attention core is given"
    if plan.job.optimizer not in _OPTIMIZERS:
        yield f"the optimizer {plan.job.optimizer}"
