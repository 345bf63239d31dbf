"""A plan's decisions in sentences."""

from __future__ import annotations

from autoplan.plan import Estimate, MeshPlan, Plan
from autoplan.plurals import counted
from autoplan.report import schedules, units
from hardware_profiles.spec import ClusterSpec

_ZERO = {
    0: "every data-parallel rank holds all weights, gradients and optimizer state;"
    " gradients are all-reduced once a step",
    1: "stored weights and optimizer state are split over {dp}; weights are gathered once a step,"
    " gradients reduced once, at the last microbatch",
    2: "stored weights, gradients and optimizer state are split over {dp}; weights are gathered"
    " once a step, gradients reduced after every microbatch",
    3: "weights, gradients and optimizer state are split over {dp}; weights are gathered for every"
    " use and freed after it",
}
MEMORY_NAMES = {
    "parameters": "parameters",
    "master_weights": "fp32 master weights",
    "gradients": "gradients",
    "optimizer_state": "optimizer state",
    "gathered_parameters": "gathered parameters",
    "activations": "saved activations",
    "transient": "transient peak",
    "communication_buffers": "communication buffers",
    "workspace": "context and workspace",
}
COMPONENTS = {
    "compute_s": "compute",
    "exposed_comm_s": "exposed communication",
    "bubble_s": "pipeline bubble",
    "optimizer_s": "optimizer",
}


def axes(plan: MeshPlan) -> tuple[str, ...]:
    """The axes from the one whose ranks are farthest apart to the one of neighbours."""
    return (*(("dp", "pp") if plan.outermost == "dp" else ("pp", "dp")), "cp", "ep", "tp")


def mesh(plan: MeshPlan) -> str:
    """``dp 4 x tp 2``: the axes with more than one rank; ``one device`` when there is none."""
    sizes = [f"{axis} {getattr(plan, axis)}" for axis in axes(plan) if getattr(plan, axis) > 1]
    return " x ".join(sizes) or "one device"


def decisions(
    mesh_plan: MeshPlan, *, schedule: str, stages_per_rank: int, zero_stage: int, replicas: int
) -> str:
    """``pp 4 x dp 2 x tp 2, interleaved x2, ZeRO 1``."""
    parts = [mesh(mesh_plan)]
    if mesh_plan.pp > 1:
        parts.append(schedules.short_name(schedule, stages_per_rank))
    parts.append(f"ZeRO {zero_stage}" + (f" in {replicas} replicas" if replicas > 1 else ""))
    return ", ".join(parts)


def title(plan: Plan, cluster: ClusterSpec | None) -> str:
    """``gpt2 on 8 x H100-SXM5-80GB``."""
    device = f" {cluster.device.name}" if cluster else " devices"
    return f"{plan.job.model.name} on {plan.mesh.world_size} x{device}"


def decided(plan: Plan) -> str:
    """The ``decisions`` of a plan."""
    return decisions(
        plan.mesh,
        schedule=plan.schedule,
        stages_per_rank=schedules.stages_per_rank(plan),
        zero_stage=plan.zero,
        replicas=plan.replicas,
    )


def batch(plan: Plan) -> str:
    """How the global batch is cut."""
    per_rank = plan.microbatch * plan.num_microbatches
    pieces = counted(plan.num_microbatches, "microbatch", "microbatches")
    return (
        f"each data-parallel rank takes {per_rank} of {plan.job.global_batch} samples a step,"
        f" as {pieces} of {plan.microbatch}{_shared(plan.mesh.cp)}"
    )


def _shared(cp: int) -> str:
    return f"; {cp} ranks of cp share each of them" if cp > 1 else ""


def zero(plan: Plan) -> str:
    """What the ZeRO stage splits, and over which ranks."""
    ranks, replicas = plan.mesh.dp * plan.mesh.cp, plan.replicas
    axes = "dp" if plan.mesh.cp == 1 else "dp x cp"
    if ranks == 1:
        return f"stage {plan.zero}: one data-parallel rank, nothing to split"
    over = axes if replicas == 1 else f"{ranks // replicas} of the {ranks} {axes} ranks"
    # In a pipeline the higher stages do what stage 1 does (``cost_models.zero``).
    does = _ZERO[min(plan.zero, 1) if plan.mesh.pp > 1 else plan.zero].format(dp=over)
    if replicas == 1:
        return f"stage {plan.zero}: {does}"
    return (
        f"stage {plan.zero} in {replicas} replicas (hybrid sharding): {does}; sums of gradients go"
        " from replica to replica"
    )


def time_parts(estimate: Estimate) -> list[tuple[str, float]]:
    """The parts that add up to ``step_s``, largest first, without those that are zero."""
    parts = [(name, getattr(estimate, field)) for field, name in COMPONENTS.items()]
    return sorted((part for part in parts if part[1] > 0), key=lambda part: -part[1])


def verdict(plan: Plan) -> str:
    """Whether it fits, and what would have to give for a faster step."""
    estimate = plan.estimate
    used = estimate.peak_memory_bytes / estimate.memory_limit_bytes
    fits = estimate.peak_memory_bytes <= estimate.memory_limit_bytes
    memory = (
        f"{'Fits' if fits else 'Does not fit'}: {units.nbytes(estimate.peak_memory_bytes)} of"
        f" {units.nbytes(estimate.memory_limit_bytes)} a device ({units.percent(used)})."
    )
    name, value_s = time_parts(estimate)[0]
    share = units.percent(value_s / estimate.step_s)
    return f"{memory} A step takes {units.seconds(estimate.step_s)}, {share} of it {name}."


def memory_limit(limit_bytes: int, margin: float) -> str:
    """The limit that the user gave."""
    return (
        f"Memory is limited to {units.nbytes(limit_bytes)} a device, of which "
        f"{units.percent(margin)} is left free."
    )


def memory_binds(plan: Plan) -> str | None:
    """The fastest alternative that only memory rules out, if it beats the plan."""
    faster = [
        other
        for other in plan.alternatives
        if not other.fits and other.step_s is not None and other.step_s < plan.estimate.step_s
    ]
    if not faster:
        return None
    best = min(faster, key=lambda other: other.step_s or 0.0)
    return (
        f"Memory binds: {best.name} would take {units.seconds(best.step_s or 0.0)}"
        f" but needs {units.nbytes(best.peak_memory_bytes)} a device."
    )
