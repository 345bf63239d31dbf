"""The plan beside the standard recipes and the runners-up, and why each of them lost.

Figures stand in a table of less than 80 columns, the reasons below it, where each has a line.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autoplan.plan import Alternative, MeshPlan, Plan
from autoplan.report import schedules, units
from autoplan.report.recompute import recompute_share
from autoplan.report.tables import add_figures, add_words, plain_table

_AXES = ("pp", "dp", "cp", "ep", "tp")


def versus(plan: Plan) -> Group:
    """A row a plan, the chosen one first, then the reasons; times are of the same cost model."""
    reasons = Table.grid(padding=(0, 2))
    reasons.add_column(no_wrap=True)
    reasons.add_column(overflow="fold")
    for other in plan.alternatives:
        style = "" if other.fits else "dim"
        reasons.add_row(Text(other.name), Text(other.reason), style=style)
    return Group(_figures(plan), Padding(reasons, (1, 0, 0, 0)))


def _figures(plan: Plan) -> Table:
    others = plan.alternatives
    axes = _axes([plan.mesh, *(other.mesh for other in others)])
    table = plain_table()
    table.add_column("plan", overflow="fold", max_width=17)
    table.add_column(" x ".join(axes), no_wrap=True)
    add_figures(table, "ZeRO", "microb.", "step", "memory")
    recomputes = _recomputes(plan)
    if recomputes:
        add_words(table, "recompute")
    table.add_row(
        "this plan",
        _mesh(plan.mesh, axes, plan.schedule, schedules.stages_per_rank(plan), plan.replicas),
        str(plan.zero),
        str(plan.num_microbatches),
        units.seconds(plan.estimate.step_s),
        units.nbytes(plan.estimate.peak_memory_bytes),
        *([recompute_share(plan)] if recomputes else []),
        style="bold green",
    )
    for other in others:
        table.add_row(*_row(other, axes, recomputes), style="" if other.fits else "dim")
    return table


def _axes(meshes: Sequence[MeshPlan]) -> tuple[str, ...]:
    """Axes that any of the meshes has, ``dp`` and ``tp`` in any case."""
    used = {axis for axis in _AXES for mesh in meshes if getattr(mesh, axis) > 1}
    return tuple(axis for axis in _AXES if axis in used | {"dp", "tp"})


def _mesh(
    mesh: MeshPlan, axes: Sequence[str], schedule: str, stages_per_rank: int, replicas: int
) -> str:
    """Degrees, with what there is to say of the pipeline and of replicas in lines below."""
    lines = [" x ".join(str(getattr(mesh, axis)) for axis in axes)]
    if mesh.pp > 1:
        lines.append(schedules.short_name(schedule, stages_per_rank))
    if mesh.pp > 1 and mesh.outermost == "dp":
        lines.append("dp outermost")
    if replicas > 1:
        lines.append(f"{replicas} replicas")
    return "\n".join(lines)


def _recomputes(plan: Plan) -> bool:
    """Whether any of the plans recomputes something."""
    return recompute_share(plan) != "none" or any(
        other.recompute != "none" for other in plan.alternatives
    )


def _row(other: Alternative, axes: Sequence[str], recomputes: bool) -> tuple[str | Text, ...]:
    return (
        Text(other.name),
        _mesh(other.mesh, axes, other.schedule, other.stages_per_rank, other.replicas),
        str(other.zero),
        str(other.num_microbatches),
        "-" if other.step_s is None else units.seconds(other.step_s),
        units.nbytes(other.peak_memory_bytes),
        *([Text(other.recompute.removesuffix(" blocks"))] if recomputes else []),
    )
