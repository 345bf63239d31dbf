"""A hand-written plan with the seconds of its stages: 1F1B, pp 2 x dp 2 x tp 2, four microbatches.

Both stages take 10 ms forward and 20 ms backward, of which 1 and 2 ms are messages, and 1 ms to
send. By hand, in ms: behind a head of 2, rank 1 has its first microbatch at 13 and its gradient is
with rank 0 at 44, so that rank 0 runs its third forward from 64 to 74. Rank 1, at 73 done with two
microbatches, waits for it until 75 and ends the other two at 135; rank 0 ends its last backward
from 136 to 156. Sums of gradients show for 3, the optimizer takes 4: 163.
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
    StageTiming,
)
from autoplan.plan_details import (
    BlockFlow,
    FlowOperator,
    ModuleMemory,
    Outlook,
    ScalingPoint,
    SizeLimit,
    TensorRead,
)
from cost_models.memory import MemoryBreakdown
from cost_models.schedule_times import StageTimes
from hardware_profiles.load import load

GIB = 2**30
LAYERS = tuple(f"layers.{index}" for index in range(8))
HEAD_S, STEP_S = 0.002, 0.163


def memory(activations_gib: int, transient_gib: int) -> MemoryBreakdown:
    """Of a rank; ten GiB beside what is said here."""
    return MemoryBreakdown(
        parameters=2 * GIB,
        master_weights=0,
        gradients=3 * GIB,
        optimizer_state=2 * GIB,
        gathered_parameters=GIB,
        activations=activations_gib * GIB,
        transient=transient_gib * GIB,
        communication_buffers=GIB // 2,
        workspace=3 * GIB // 2,
    )


def timing(send_forward_s: float, send_backward_s: float) -> StageTiming:
    """Of a stage; microbatches keep 5 GiB each."""
    return StageTiming(
        times=StageTimes(
            forward_s=0.010,
            backward_input_s=0.012,
            backward_weight_s=0.008,
            send_forward_s=send_forward_s,
            send_backward_s=send_backward_s,
        ),
        forward_messages_s=0.001,
        backward_messages_s=0.002,
        tail_s=0.003,
        optimizer_s=0.004,
        kept_bytes=5 * GIB,
    )


def rank(bubble_s: float, held: int, memory_of: MemoryBreakdown) -> StageEstimate:
    return StageEstimate(
        devices=4, compute_s=0.108, memory=memory_of, forward_s=0.010, backward_s=0.020,
        bubble_s=bubble_s, held_microbatches=held,
    )  # fmt: skip


REGIONS = (
    RegionPlan(
        kind="", blocks=(), recomputed=(), operators={}, inputs=(),
        parameters={"embed.weight": "Shard(0)", "<script>alert(1)</script>": "Replicate()"},
    ),
    RegionPlan(
        kind=LAYERS[0], blocks=LAYERS, recomputed=LAYERS[:2], operators={}, inputs=("Replicate()",),
        parameters={"up.weight": "Shard(0)", "down.weight": "Shard(1)"},
    ),
)  # fmt: skip


def module(name: str, kind: str, states: int, activations: int) -> ModuleMemory:
    """Of the first rank, in GiB."""
    return ModuleMemory(
        kind=kind, module=name, copies=4 if kind else 1, parameters=states * GIB,
        gradients=states * GIB, optimizer_state=states * GIB, gathered_parameters=0,
        activations=activations * GIB,
    )  # fmt: skip


MODULES = (
    module("down", LAYERS[0], 1, 7), module("<script>up</script>", LAYERS[0], 1, 2),
    module("", LAYERS[0], 0, 1), module("embed", "", 0, 1),
)  # fmt: skip

FLOW = BlockFlow(
    block=LAYERS[0],
    operators=(
        FlowOperator(
            name="norm/layer_norm", placement="Replicate()", reads=(TensorRead(source=-1),),
            recomputed=True,
        ),
        FlowOperator(
            name="<script>up</script>/linear", placement="Shard(2)",
            reads=(
                TensorRead(source=0, backward="all_reduce", nbytes=GIB // 8),
                TensorRead(source=None, forward="all_gather", backward="reduce_scatter",
                           nbytes=GIB // 16),
            ),
        ),
        FlowOperator(
            name="up/gelu", placement="Shard(2)", reads=(TensorRead(source=1),), recomputed=True
        ),
        FlowOperator(
            name="down/linear", placement='Partial("sum")', reads=(TensorRead(source=2),)
        ),
        FlowOperator(
            name="add", placement="Replicate()",
            reads=(
                TensorRead(source=-1),
                TensorRead(source=3, forward="all_reduce", nbytes=GIB // 8),
            ),
        ),
    ),
    outputs=(TensorRead(source=4),),
)  # fmt: skip


def scaled(nodes: int, samples_per_s: float | None, reason: str = "") -> ScalingPoint:
    return ScalingPoint(
        nodes=nodes, devices=8 * nodes, global_batch=16 * nodes, samples_per_s=samples_per_s,
        step_s=samples_per_s and 16 * nodes / samples_per_s, reason=reason,
    )  # fmt: skip


OUTLOOK = Outlook(
    scaling=(
        scaled(1, 98.16), scaled(2, 180.0), scaled(4, None, "nothing fits <b>here</b>"),
        scaled(8, 600.0),
    ),
    largest_microbatch=SizeLimit(value=6, does_not_fit=7, peak_memory_bytes=70 * GIB),
    longest_sequence=SizeLimit(value=65536, does_not_fit=None, peak_memory_bytes=75 * GIB),
)  # fmt: skip

ESTIMATE = Estimate(
    step_s=STEP_S,
    compute_s=0.108,
    exposed_comm_s=0.020,
    bubble_s=0.031,
    optimizer_s=0.004,
    comm_s={"all_gather tp": 0.012, "reduce_scatter dp": 0.020, "send_recv pp": 0.008},
    tokens_per_s=402061.0,
    samples_per_s=98.16,
    mfu=0.37,
    peak_memory_bytes=22 * GIB,
    memory_limit_bytes=76 * GIB,
    stages=(rank(0.031, 2, memory(11, 1)), rank(0.032, 1, memory(5, 2))),
    comm_bytes={"all_gather tp": GIB, "reduce_scatter dp": 3 * GIB, "send_recv pp": GIB // 4},
    comm_counts={"all_gather tp": 64, "reduce_scatter dp": 5, "send_recv pp": 4},
    exposed_by_axis_s={"dp": 0.005, "pp": 0.003, "tp": 0.012},
    head_s=HEAD_S,
    timings=(timing(0.001, 0.0), timing(0.0, 0.001)),
    modules=MODULES,
)

OTHERS = (
    Alternative(
        name="FSDP (ZeRO-3)", mesh=MeshPlan(dp=8), zero=3, num_microbatches=2, recompute="full",
        step_s=0.165, peak_memory_bytes=30 * GIB, fits=True,
        reason="1.2 % slower: 2 ms more bubble",
    ),
    Alternative(
        name="DDP", mesh=MeshPlan(dp=8), zero=0, num_microbatches=1, recompute="none", step_s=0.15,
        peak_memory_bytes=90 * GIB, fits=False, reason="does not fit by 14.0 GiB",
    ),
    Alternative(
        name="<b>tp</b>", mesh=MeshPlan(tp=8), zero=0, num_microbatches=1, recompute="none",
        step_s=0.326, peak_memory_bytes=20 * GIB, fits=True, reason="100 % slower",
    ),
)  # fmt: skip

TIMED = Plan(
    job=Job(
        model=ModelSource(kind="zoo", name="llama3-8b", seq_len=4096),
        cluster="dgx-h100",
        nodes=1,
        gpus_per_node=8,
        global_batch=16,
        pins=Pins(pp=2),
    ),
    fingerprint="f" * 64,
    mesh=MeshPlan(pp=2, dp=2, tp=2),
    zero=1,
    microbatch=2,
    num_microbatches=4,
    schedule="1f1b",
    regions=REGIONS,
    estimate=ESTIMATE,
    search=SearchRecord(gap=0.01, lower_bound_s=0.16137, candidates=23, space="all of them"),
    alternatives=OTHERS,
    profile_digest=load("dgx-h100").digest,
    stages=(
        StagePlan(rank=0, first="embed/embedding", blocks=LAYERS[:4]),
        StagePlan(rank=1, first=LAYERS[4], blocks=LAYERS[4:]),
    ),
    warnings=("<img src=x> is only a name",),
    flows=(FLOW,),
    outlook=OUTLOOK,
)
