"""Which modules fill the fullest device, repeated layers folded."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from autoplan.plan import Plan
from autoplan.plan_details import ModuleMemory
from autoplan.report import units
from autoplan.report.fold import block_pattern
from autoplan.report.tables import plain_table

COLUMNS = ("module", "blocks", "total", "weights", "gradients", "optimizer", "activations")
NOTE = (
    "On the fullest device, all blocks there together; weights with their gathered copies. "
    "Activations are those that a module makes and that stay for the backward, when the device "
    "holds most of them; what enters a block, and what it adds up, is the block's own."
)
_TOLD = 6


def dominant(plan: Plan) -> str | None:
    """The module that takes most, in a sentence."""
    if not plan.estimate.modules:
        return None
    first = plan.estimate.modules[0]
    limit = plan.estimate.memory_limit_bytes
    where = f", {first.copies} blocks together" if first.copies > 1 else ""
    return (
        f"{module_name(plan, first)} takes most{where}: {units.nbytes(first.total)}, "
        f"{units.percent(first.total / limit)} of the limit."
    )


def module_rows(plan: Plan) -> Iterator[tuple[str, ...]]:
    """The largest first, in the order of ``COLUMNS``."""
    for each in plan.estimate.modules:
        parts = (
            each.total,
            each.parameters + each.gathered_parameters,
            each.gradients,
            each.optimizer_state,
            each.activations,
        )
        shown = (units.nbytes(nbytes) if nbytes else "-" for nbytes in parts)
        yield module_name(plan, each), str(each.copies) if each.kind else "", *shown


def module_table(plan: Plan) -> RenderableType:
    """The largest ones, for a terminal."""
    table = plain_table()
    for name in COLUMNS:
        is_name = name == "module"
        table.add_column(
            name, justify="left" if is_name else "right", overflow="fold", no_wrap=not is_name
        )
    rows = [*module_rows(plan)]
    for row in rows[:_TOLD]:
        table.add_row(*map(Text, row))
    left = len(rows) - _TOLD
    parts: list[RenderableType] = [Text(dominant(plan) or ""), table]
    return Group(*parts, *([Text(f"and {left} more", style="dim")] if left > 0 else []))


def module_name(plan: Plan, module: ModuleMemory) -> str:
    """``layers.*.mlp.up_proj``; with the blocks' numbers where other kinds have the same path."""
    if not module.kind:
        return module.module or "outside modules"
    pattern = _pattern(plan, module.kind)
    return f"{pattern}.{module.module}" if module.module else pattern


def _pattern(plan: Plan, kind: str) -> str:
    blocks: dict[str, list[str]] = {}
    for region in plan.regions:
        blocks.setdefault(region.kind, []).extend(region.blocks)
    folded = {each: block_pattern(paths) for each, paths in blocks.items() if each and paths}
    if kind not in folded:
        return kind
    if [*folded.values()].count(folded[kind]) > 1:
        return block_pattern(blocks[kind], explicit=True)
    return folded[kind]
