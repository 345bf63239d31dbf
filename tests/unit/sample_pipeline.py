"""A hand-written plan with a pipeline: pp 4 x dp 2 x tp 2, interleaved, blocks in two variants.

Thirty-two layers in eight stages of four, so that rank r runs stages r and r + 4. The first two
ranks hold more microbatches than the last two, and recompute more for it.
"""

from __future__ import annotations

from autoplan.job import Job, ModelSource, Pins
from autoplan.plan import (
    Alternative,
    Estimate,
    MeshPlan,
    Plan,
    RegionPlan,
    SearchRecord,
    StageEstimate,
    StagePlan,
)
from cost_models.memory import MemoryBreakdown

GIB = 2**30
LAYERS = tuple(f"model.layers.{index}" for index in range(32))
EARLY = LAYERS[:8] + LAYERS[16:24]
LATE = LAYERS[8:16] + LAYERS[24:]

ROOT = RegionPlan(
    kind="",
    blocks=(),
    recomputed=(),
    parameters={
        "model.embed_tokens.weight": "Shard(0)",
        "model.norm.weight": "Replicate()",
        "lm_head.weight": "Shard(0)",
    },
    operators=dict.fromkeys(
        ("model.embed_tokens/embedding", "model.norm/mul", "model.norm/rsqrt", "lm_head/linear"),
        "replicate",
    ),
    inputs=(),
    recomputed_operators=("model.norm/mul", "model.norm/rsqrt"),
)

_PARAMETERS = {
    "input_layernorm.weight": "Replicate()",
    "self_attn.q_proj.weight": "Shard(0)",
    "self_attn.o_proj.weight": "Shard(1)",
    "mlp.gate_proj.weight": "Shard(0)",
    "mlp.down_proj.weight": "Shard(1)",
}
_OPERATORS = dict.fromkeys(
    (
        "input_layernorm/rsqrt",
        "input_layernorm/mul",
        "self_attn.q_proj/linear",
        "self_attn/view",
        "self_attn/neg",
        "self_attn/cat",
        "self_attn/scaled_dot_product_attention",
        "self_attn.o_proj/linear",
        "add",
        "mlp.gate_proj/linear",
        "mlp.act_fn/silu",
        "mlp/mul",
        "mlp.down_proj/linear",
    ),
    "replicate",
)
EARLY_REGION = RegionPlan(
    kind=LAYERS[0],
    blocks=EARLY,
    recomputed=LAYERS[:2],
    parameters=_PARAMETERS,
    operators=_OPERATORS,
    inputs=("Shard(1)",),
    recomputed_operators=(
        "input_layernorm/rsqrt",
        "input_layernorm/mul",
        "self_attn/view",
        "self_attn/neg",
        "self_attn/cat",
        "mlp.act_fn/silu",
        "mlp/mul",
    ),
)
LATE_REGION = RegionPlan(
    kind=LAYERS[0],
    blocks=LATE,
    recomputed=(),
    parameters=_PARAMETERS,
    operators=_OPERATORS,
    inputs=("Shard(1)",),
    recomputed_operators=("input_layernorm/mul", "add"),
)

STAGES = tuple(
    StagePlan(
        rank=number % 4,
        first="model.embed_tokens/embedding" if number == 0 else LAYERS[4 * number],
        blocks=LAYERS[4 * number : 4 * number + 4],
    )
    for number in range(8)
)


def memory(activations_gib: int, parameters_gib: int) -> MemoryBreakdown:
    """Twelve GiB of a rank's weights and their like, and what is said here."""
    return MemoryBreakdown(
        parameters=parameters_gib * GIB,
        master_weights=0,
        gradients=4 * GIB,
        optimizer_state=4 * GIB,
        gathered_parameters=2 * GIB,
        activations=activations_gib * GIB,
        transient=GIB,
        communication_buffers=GIB // 2,
        workspace=GIB // 2,
    )


RANKS = (
    StageEstimate(
        devices=4, compute_s=3.2, memory=memory(40, 5), forward_s=0.036, backward_s=0.08,
        bubble_s=0.28, held_microbatches=11,
    ),
    StageEstimate(
        devices=4, compute_s=3.2, memory=memory(36, 4), forward_s=0.036, backward_s=0.08,
        bubble_s=0.28, held_microbatches=9,
    ),
    StageEstimate(
        devices=4, compute_s=3.04, memory=memory(36, 4), forward_s=0.036, backward_s=0.075,
        bubble_s=0.44, held_microbatches=7,
    ),
    StageEstimate(
        devices=4, compute_s=3.36, memory=memory(30, 5), forward_s=0.04, backward_s=0.081,
        bubble_s=0.12, held_microbatches=5,
    ),
)  # fmt: skip

ESTIMATE = Estimate(
    step_s=4.0,
    compute_s=3.2,
    exposed_comm_s=0.46,
    bubble_s=0.28,
    optimizer_s=0.06,
    comm_s={"all_gather tp": 0.3, "reduce_scatter dp": 0.2, "send pp": 0.1},
    tokens_per_s=131072.0,
    samples_per_s=16.0,
    mfu=0.43,
    peak_memory_bytes=57 * GIB,
    memory_limit_bytes=76 * GIB,
    stages=RANKS,
)

ALTERNATIVES = (
    Alternative(
        name="FSDP (ZeRO-3)",
        mesh=MeshPlan(dp=16),
        zero=3,
        num_microbatches=4,
        recompute="full",
        step_s=4.6,
        peak_memory_bytes=40 * GIB,
        fits=True,
        reason="15 % slower: 700 ms more exposed communication",
        replicas=2,
    ),
    Alternative(
        name="zero bubble",
        mesh=MeshPlan(pp=4, dp=2, tp=2, outermost="dp"),
        zero=1,
        num_microbatches=32,
        recompute="16 of 32 blocks",
        step_s=3.9,
        peak_memory_bytes=80 * GIB,
        fits=False,
        reason="does not fit by 4.0 GiB (saved activations: 60.0 GiB)",
        schedule="zero_bubble",
        stages_per_rank=2,
    ),
)

PIPELINE = Plan(
    job=Job(
        model=ModelSource(kind="zoo", name="llama3-8b", seq_len=8192),
        cluster="dgx-h100",
        nodes=2,
        gpus_per_node=8,
        global_batch=64,
        pins=Pins(pp=4, schedule="interleaved_1f1b"),
        planned_only=True,
    ),
    fingerprint="f" * 64,
    mesh=MeshPlan(pp=4, dp=2, tp=2),
    zero=1,
    microbatch=1,
    num_microbatches=32,
    schedule="interleaved_1f1b",
    regions=(ROOT, EARLY_REGION, LATE_REGION),
    estimate=ESTIMATE,
    search=SearchRecord(
        gap=0.03,
        lower_bound_s=3.88,
        candidates=211,
        space="pp x dp x tp meshes, stage cuts, schedules, ZeRO 0-3, recompute by operator",
    ),
    alternatives=ALTERNATIVES,
    profile_digest="d" * 64,
    stages=STAGES,
    warnings=("pipelines are planned only; they cannot run yet",),
)
