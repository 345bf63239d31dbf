"""The command line of torchtitan 0.3 (``torchtitan/config/configs.py``).

Its models are in modules of its own, with their tensor-parallel plans; a model that it does not
have is left to the user as MODULE and CONFIG. It recomputes nothing, all blocks, or by its own list
of operators, and cuts a pipeline evenly but for the first and the last stage.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.export.decisions import Decisions
from autoplan.export.exported import Exported, gathered_weights, heading

RELEASE = "torchtitan 0.3"
_MODELS = {
    "llama3-8b": ("llama3", "llama3_8b"),
    "llama3-70b": ("llama3", "llama3_70b"),
    "llama3-405b": ("llama3", "llama3_405b"),
    "qwen3-0.6b": ("qwen3", "qwen3_0_6b"),
    "qwen3-1.7b": ("qwen3", "qwen3_1_7b"),
    "qwen3-14b": ("qwen3", "qwen3_14b"),
    "qwen3-32b": ("qwen3", "qwen3_32b"),
    "qwen3-30b-a3b": ("qwen3", "qwen3_30b_a3b"),
    "deepseek-v3": ("deepseek_v3", "deepseek_v3_671b"),
}
_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "Interleaved1F1B",
    "zero_bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
}
_RECOMPUTE = {"none": "none", "full": "full", "some blocks": "full", "operators": "selective"}


def torchtitan(decisions: Decisions) -> Exported:
    """A shell file with one ``torchrun`` command, the same on every node."""
    job = decisions.plan.job
    launch = f"torchrun --nnodes {job.nodes} --nproc-per-node {job.gpus_per_node} \\\n"
    if job.nodes > 1:
        launch += '  --rdzv-backend c10d --rdzv-endpoint "${HEAD_NODE}:29500" \\\n'
    arguments = " \\\n".join(f"  {one}" for one in arguments_of(decisions))
    return Exported(
        framework=RELEASE,
        files={
            "torchtitan.sh": heading(RELEASE) + f"{launch}  -m torchtitan.train \\\n{arguments}\n"
        },
        left_out=tuple(_left_out(decisions)),
    )


def arguments_of(decisions: Decisions) -> list[str]:
    """What follows ``torchtitan.train``."""
    plan = decisions.plan
    module, config = _MODELS.get(plan.job.model.name, ("MODULE", "CONFIG"))
    return [
        f"--module {module}",
        f"--config {config}",
        *(f"--training.{name} {value}".rstrip() for name, value in _training(decisions)),
        *(f"--parallelism.{name} {value}".rstrip() for name, value in _parallelism(decisions)),
        f"activation-checkpoint:{_RECOMPUTE[decisions.recompute]}",
    ]


def _training(decisions: Decisions) -> Iterator[tuple[str, object]]:
    plan = decisions.plan
    pipelined = plan.mesh.pp > 1
    yield "local-batch-size", decisions.local_batch if pipelined else plan.microbatch
    yield "global-batch-size", plan.job.global_batch
    if plan.job.model.seq_len is not None:
        yield "seq-len", plan.job.model.seq_len
    if plan.job.precision == "fp32":
        yield "mixed-precision-param", "float32"
    if pipelined:
        yield "disable-cuda-graphs", ""


def _parallelism(decisions: Decisions) -> Iterator[tuple[str, object]]:
    plan, mesh = decisions.plan, decisions.plan.mesh
    yield "data-parallel-replicate-degree", plan.replicas if plan.zero else mesh.dp
    yield "data-parallel-shard-degree", decisions.shards if plan.zero else 1
    if plan.zero:
        yield "fsdp-reshard-after-forward", "always" if plan.zero == 3 else "never"
    yield "tensor-parallel-degree", mesh.tp
    if mesh.tp > 1 and not decisions.splits_sequence:
        yield "no-enable-sequence-parallel", ""
    yield "pipeline-parallel-degree", mesh.pp
    if mesh.pp > 1:
        yield "pipeline-parallel-schedule", _schedule(decisions)
        yield "pipeline-parallel-microbatch-size", plan.microbatch
        yield from _stages(decisions.stage_sizes)


def _schedule(decisions: Decisions) -> str:
    """Its schedules that split the backward have two stages on a rank or more."""
    name = decisions.plan.schedule
    alone = name == "zero_bubble" and decisions.stages_per_rank == 1
    return "1F1B" if alone else _SCHEDULES[name]


def _stages(sizes: tuple[int, ...]) -> Iterator[tuple[str, object]]:
    most = max(sizes)
    yield "pipeline-parallel-layers-per-stage", most
    yield "pipeline-parallel-first-stage-less-layers", most - sizes[0]
    yield "pipeline-parallel-last-stage-less-layers", most - sizes[-1]


def _left_out(decisions: Decisions) -> Iterator[str]:
    plan = decisions.plan
    if plan.job.model.name not in _MODELS:
        yield f"the model {plan.job.model.name}: put yours in place of MODULE and CONFIG"
    yield "data, learning rate, steps and checkpoints are those of the config"
    if plan.mesh.tp > 1:
        yield "placements of parameters and operators on tp: torchtitan's models have their own"
    if plan.zero in (1, 2):
        yield gathered_weights(plan.zero)
    inner = decisions.stage_sizes[1:-1]
    if len(set(inner)) > 1 or (inner and inner[0] < max(decisions.stage_sizes)):
        yield "where stages are cut: the inner ones have equal numbers of layers there"
    if plan.mesh.pp > 1 and _schedule(decisions) != _SCHEDULES[plan.schedule]:
        yield f"the schedule {plan.schedule} with one stage on a rank: 1F1B is given"
    if decisions.recompute == "some blocks":
        count = len(decisions.recomputed_blocks)
        yield f"recompute of {count} blocks only: torchtitan recomputes all"
    if decisions.recompute == "operators":
        yield "which operators run again: torchtitan's selective list is given"
    if plan.mesh.outermost == "dp" and plan.mesh.pp > 1:
        yield "dp as the outermost axis: torchtitan has pp outermost"
    if plan.job.precision == "fp16":
        yield "fp16: torchtitan trains in bf16 or fp32"
    if plan.job.optimizer != "adamw":
        yield f"the optimizer {plan.job.optimizer}: that of the config is used"
