"""A small hand-written plan: two GPUs a tensor-parallel group, twelve blocks of one kind."""

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
)
from cost_models.memory import MemoryBreakdown

GIB = 2**30
BLOCKS = tuple(f"transformer.h.{index}" for index in range(12))

MEMORY = MemoryBreakdown(
    parameters=2 * GIB,
    master_weights=4 * GIB,
    gradients=2 * GIB,
    optimizer_state=8 * GIB,
    gathered_parameters=0,
    activations=20 * GIB,
    transient=3 * GIB,
    communication_buffers=GIB // 2,
    workspace=GIB // 2,
)

ROOT = RegionPlan(
    kind="",
    blocks=(),
    recomputed=(),
    parameters={
        "transformer.wte.weight": "Replicate()",
        "transformer.ln_f.weight": "Replicate()",
    },
    operators={},
    inputs=(),
)

LAYERS = RegionPlan(
    kind=BLOCKS[0],
    blocks=BLOCKS,
    recomputed=BLOCKS[:6],
    parameters={
        "ln_1.weight": "Replicate()",
        "attn.c_attn.weight": "Shard(1, parts=3)",
        "attn.c_proj.weight": "Shard(0)",
    },
    operators={},
    inputs=("Replicate()",),
)

ESTIMATE = Estimate(
    step_s=0.25,
    compute_s=0.2,
    exposed_comm_s=0.04,
    bubble_s=0.0,
    optimizer_s=0.01,
    comm_s={"all_reduce tp": 0.03, "reduce_scatter dp": 0.02},
    tokens_per_s=262144.0,
    samples_per_s=256.0,
    mfu=0.41,
    peak_memory_bytes=MEMORY.total,
    memory_limit_bytes=75 * GIB,
    stages=(StageEstimate(devices=8, compute_s=0.2, memory=MEMORY),),
)

ALTERNATIVES = (
    Alternative(
        name="DDP",
        mesh=MeshPlan(dp=8),
        zero=0,
        num_microbatches=1,
        recompute="none",
        step_s=0.2,
        peak_memory_bytes=90 * GIB,
        fits=False,
        reason="does not fit: saved activations take 60.0 GiB",
    ),
    Alternative(
        name="FSDP",
        mesh=MeshPlan(dp=8),
        zero=3,
        num_microbatches=2,
        recompute="full",
        step_s=0.3,
        peak_memory_bytes=30 * GIB,
        fits=True,
        reason="20.0 % slower: 50 ms more compute",
    ),
)

PLAN = Plan(
    job=Job(
        model=ModelSource(kind="zoo", name="gpt2", seq_len=1024),
        cluster="dgx-h100",
        nodes=1,
        gpus_per_node=8,
        global_batch=64,
        pins=Pins(tp=2),
    ),
    fingerprint="f" * 64,
    mesh=MeshPlan(dp=4, tp=2),
    zero=1,
    microbatch=8,
    num_microbatches=2,
    schedule="none",
    regions=(ROOT, LAYERS),
    estimate=ESTIMATE,
    search=SearchRecord(
        gap=0.02,
        lower_bound_s=0.245,
        candidates=37,
        space="dp x tp meshes, ZeRO 0-3, microbatches, recompute by block, placement by operator",
    ),
    alternatives=ALTERNATIVES,
    profile_digest="d" * 64,
)
