"""What a plan rests on and what it decides for the whole step, as names and sentences."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields

from autoplan.job import Pins
from autoplan.plan import Plan
from autoplan.plurals import counted
from autoplan.report import schedules, units, words
from autoplan.report.recompute import recompute
from hardware_profiles.load import ProfileFault, load
from hardware_profiles.spec import ClusterSpec

_TOKENS = (
    "each rank of cp has as many of every sample; causal attention is even, a rank having a chunk"
    " from the front and its mirror image from the back; all keys and values are gathered"
)
_LOW_PRECISION = {"bf16": "bfloat16", "fp16": "float16"}
_BATCH_NORM = {
    "sync": "statistics of the whole batch, over all data-parallel ranks",
    "local": "statistics of each rank's and microbatch's own rows; running ones are their mean",
}


def installed_profile(plan: Plan) -> ClusterSpec | None:
    """The profile named in the plan as it is now; None when there is no such profile any more."""
    try:
        return load(plan.job.cluster)
    except ProfileFault:
        return None


def assumption_rows(plan: Plan, cluster: ClusterSpec | None) -> list[tuple[str, str]]:
    """What was asked for and taken as given."""
    job = plan.job
    pins = [
        f"{field.name}={value}"
        for field in fields(Pins)
        if (value := getattr(job.pins, field.name)) is not None
    ]
    whole = "the device" if job.memory_limit_bytes is None else "the limit"
    nodes = f"{counted(job.nodes, 'node')} of {job.gpus_per_node}"
    return [
        ("model", _model(plan)),
        ("cluster", f"{job.cluster}, {nodes}{_price(cluster)}"),
        ("profile", _profile(plan, cluster)),
        ("batch", f"{job.global_batch} samples a step over the whole cluster"),
        ("precision", _precision(job.precision, cluster)),
        ("optimizer", job.optimizer),
        *([("BatchNorm", _BATCH_NORM[job.batch_norm])] if _norms_batches(plan) else []),
        ("memory margin", f"{units.percent(job.memory_margin)} of {whole} is left free"),
        ("pinned", ", ".join(pins) or "nothing, the planner chose all"),
        *(("placed", f"{glob} = {placement}") for glob, placement in job.placements),
        *([("planned only", "what cannot run yet may be chosen")] if job.planned_only else []),
    ]


def _norms_batches(plan: Plan) -> bool:
    """Whether a call of the model is a BatchNorm, by the names that the plan has of them."""
    names = (name for region in plan.regions for name in region.operators)
    return any(name.rpartition("/")[2].startswith("batch_norm") for name in names)


def _precision(precision: str, cluster: ClusterSpec | None) -> str:
    if precision not in _LOW_PRECISION:
        return precision
    text = f"{precision} compute, fp32 master weights and optimizer state"
    if cluster and _LOW_PRECISION[precision] not in cluster.device.peak_flops:
        text += f"; {cluster.device.name} has no fast {precision}, products take far longer"
    return text


def _price(cluster: ClusterSpec | None) -> str:
    price = cluster.price_per_gpu_hour_usd if cluster else None
    return f", {price:.2f} USD per GPU hour assumed" if price else ""


def _model(plan: Plan) -> str:
    source = plan.job.model
    text = f"{source.name} ({source.kind})"
    if source.seq_len:
        text += f", {source.seq_len} tokens a sample"
    for name, shape in source.inputs:
        text += f", {name} of {' x '.join(map(str, shape))}"
    return text


def _profile(plan: Plan, cluster: ClusterSpec | None) -> str:
    if cluster is None:
        return "not installed here; the figures are those stored in the plan"
    if cluster.digest != plan.profile_digest:
        return "CHANGED since the plan was made; the figures are those stored in the plan"
    counted = Counter(cluster.provenance.values()).most_common()
    values = ", ".join(f"{number} {source}" for source, number in counted)
    return f"values {values}; predictions, nothing was run"


def decision_rows(plan: Plan) -> list[tuple[str, str]]:
    """Mesh, schedule, batch, ZeRO and recompute."""
    mesh = f"{words.mesh(plan.mesh)} = {plan.mesh.world_size} devices"
    if plan.mesh.pp > 1 and plan.mesh.dp > 1:
        mesh += ", the outermost axis first"
    return [
        ("mesh", mesh),
        *([("schedule", schedules.sentence(plan))] if plan.stages else []),
        ("batch", words.batch(plan)),
        *([("tokens", _TOKENS)] if plan.mesh.cp > 1 else []),
        ("ZeRO", words.zero(plan)),
        ("recompute", recompute(plan)),
    ]
