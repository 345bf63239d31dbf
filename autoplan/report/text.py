"""The report on a terminal: what was decided, why, and what it is predicted to cost.

Every figure is one that the plan holds, or a sum, share or ratio of such. The hardware profile that
the plan names adds what its values rest on, when it is installed. No torch, so that a plan file is
shown at once.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import fields

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autoplan.job import Pins
from autoplan.plan import Plan
from autoplan.report import schedules, units, words
from autoplan.report.bars import bar_table
from autoplan.report.fold import parameter_rows
from autoplan.report.opaque import opaque_table
from autoplan.report.ranks import rank_tables
from autoplan.report.recompute import recompute
from autoplan.report.versus import versus
from hardware_profiles.load import ProfileFault, load
from hardware_profiles.spec import ClusterSpec

PIPE_WIDTH = 100
_LOW_PRECISION = {"bf16": "bfloat16", "fp16": "float16"}
_BATCH_NORM = {
    "sync": "statistics of the whole batch, over all data-parallel ranks",
    "local": "statistics of each rank's and microbatch's own rows; running ones are their mean",
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


def print_report(plan: Plan, console: Console | None = None) -> None:
    """Prints the whole report, on stdout by default, 100 columns wide where that is no terminal."""
    if console is None:
        console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
    cluster = _installed_profile(plan)
    console.print(_verdict(plan, cluster))
    _section(console, "Assumptions", _assumptions(plan, cluster))
    _section(console, "Plan", _decisions(plan))
    if plan.stages:
        _section(console, "Ranks of the pipeline", rank_tables(plan))
    _section(console, f"Memory on the fullest device{_fullest_rank(plan)}", _memory(plan))
    _section(console, "Time of one step", _time(plan))
    _section(console, "Placement of parameters on tp", _placements(plan))
    if plan.opaque:
        _section(console, "Without a rule", opaque_table(plan.opaque))
    _section(console, "Against other plans", versus(plan))
    _section(console, "How good it is", Text(_certificate(plan)))


def _installed_profile(plan: Plan) -> ClusterSpec | None:
    """The profile named in the plan as it is now; None when there is no such profile any more."""
    try:
        return load(plan.job.cluster)
    except ProfileFault:
        return None


def _section(console: Console, title: str, body: RenderableType) -> None:
    console.print()
    console.print(Text(title, style="bold"))
    console.print(Padding(body, (0, 0, 0, 2)))


def _verdict(plan: Plan, cluster: ClusterSpec | None) -> RenderableType:
    device = f" {cluster.device.name}" if cluster else " devices"
    title = Text(f"{plan.job.model.name} on {plan.mesh.world_size} x{device}", style="bold")
    decisions = words.decisions(
        plan.mesh,
        schedule=plan.schedule,
        stages_per_rank=schedules.stages_per_rank(plan),
        zero_stage=plan.zero,
        replicas=plan.replicas,
    )
    title.append(f"  {decisions}", style="bold cyan")
    lines = [title, Text(words.verdict(plan), style="green")]
    if plan.job.memory_limit_bytes is not None:
        lines.append(Text(words.memory_limit(plan.job.memory_limit_bytes, plan.job.memory_margin)))
    binds = words.memory_binds(plan)
    if binds:
        lines.append(Text(binds, style="yellow"))
    lines += [Text(f"Warning: {warning}", style="yellow") for warning in plan.warnings]
    return Group(*lines)


def _pairs(rows: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def _assumptions(plan: Plan, cluster: ClusterSpec | None) -> RenderableType:
    job = plan.job
    pins = [
        f"{field.name}={value}"
        for field in fields(Pins)
        if (value := getattr(job.pins, field.name)) is not None
    ]
    whole = "the device" if job.memory_limit_bytes is None else "the limit"
    nodes = f"{job.nodes} node{'s' if job.nodes > 1 else ''} of {job.gpus_per_node}"
    return _pairs(
        [
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
    )


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


def _decisions(plan: Plan) -> RenderableType:
    mesh = f"{words.mesh(plan.mesh)} = {plan.mesh.world_size} devices"
    if plan.mesh.pp > 1 and plan.mesh.dp > 1:
        mesh += ", the outermost axis first"
    return _pairs(
        [
            ("mesh", mesh),
            *([("schedule", schedules.sentence(plan))] if plan.stages else []),
            ("batch", words.batch(plan)),
            ("ZeRO", words.zero(plan)),
            ("recompute", recompute(plan)),
        ]
    )


def _fullest_rank(plan: Plan) -> str:
    totals = [stage.memory.total for stage in plan.estimate.stages]
    return f", of pp rank {totals.index(max(totals))}" if plan.stages else ""


def _memory(plan: Plan) -> RenderableType:
    fullest = max(plan.estimate.stages, key=lambda stage: stage.memory.total).memory
    limit = plan.estimate.memory_limit_bytes
    rows = [
        (name, units.nbytes(value), value / limit)
        for field, name in MEMORY_NAMES.items()
        if (value := getattr(fullest, field)) > 0
    ]
    total = ("total", units.nbytes(fullest.total), fullest.total / limit)
    return bar_table(rows, total, whole=f"{units.nbytes(limit)} limit")


def _time(plan: Plan) -> RenderableType:
    estimate = plan.estimate
    rows = [
        (name, units.seconds(value_s), value_s / estimate.step_s)
        for name, value_s in words.time_parts(estimate)
    ]
    total = ("step", units.seconds(estimate.step_s), 1.0)
    parts: list[RenderableType] = [bar_table(rows, total, whole="one step")]
    if any(estimate.comm_s.values()):
        messages = ", ".join(
            f"{name} {units.seconds(value_s)}"
            for name, value_s in estimate.comm_s.items()
            if value_s > 0
        )
        parts.append(Text(f"messages, hidden ones included: {messages}", style="dim"))
    rates = [f"{units.count(estimate.samples_per_s)} samples/s"]
    if estimate.tokens_per_s is not None:
        rates.insert(0, f"{units.count(estimate.tokens_per_s)} tokens/s")
    parts.append(Text(f"{', '.join(rates)}, {units.percent(estimate.mfu)} of peak flops (MFU)"))
    return Group(*parts)


def _placements(plan: Plan) -> RenderableType:
    rows = list(parameter_rows(plan.regions))
    whole = [name for name, placement in rows if placement == "Replicate()"]
    if len(whole) == len(rows):
        size = f"tp {plan.mesh.tp}"
        return Text(f"{size}: every parameter is whole on each tensor-parallel rank")
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("parameter", overflow="fold")
    table.add_column("placement", no_wrap=True)
    table.add_column("a rank holds", no_wrap=True)
    for name, placement in rows:
        if placement == "Replicate()":
            table.add_row(Text(name, style="dim"), Text(placement, style="dim"), "")
        else:
            table.add_row(Text(name), Text(placement, style="cyan"), f"1/{plan.mesh.tp}")
    return table


def _certificate(plan: Plan) -> str:
    search = plan.search
    if search.gap > 0:
        digits = 1000 if search.gap < 0.099 else 100
        gap = units.percent(math.ceil(search.gap * digits) / digits)
        proof = (
            f"No plan in the space takes less than {units.seconds(search.lower_bound_s)} by the"
            f" same cost model: this one is within {gap} of the best."
        )
    else:
        proof = "No plan in the space is faster by the same cost model."
    return f"{proof} {search.candidates} candidates. Space: {search.space}."
