"""A plan's prediction beside what was measured: the step, each rank, messages and bytes."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from autoplan.calibration.calibrated import Calibrated
from autoplan.calibration.factors import Factors, predicted_optimizer_s
from autoplan.measurement import RankMeasurement, StepMeasurement
from autoplan.plan import Plan
from autoplan.report import units
from autoplan.report.tables import plain_table
from autoplan.report.text import PIPE_WIDTH

BUSY = 0.05
"""Of the machine: with more taken by others, the report says so."""
_UNKNOWN = "-"


def print_calibration(found: Calibrated, console: Console | None = None) -> None:
    """Prints predicted against measured, and the corrections; what was not measured has a dash."""
    if console is None:
        console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
    for part in _parts(found.plan, found.measured, found.factors):
        console.print(part)


def _parts(plan: Plan, found: StepMeasurement, factors: Factors) -> Iterator[RenderableType]:
    step = found.step_s
    yield Text(
        f"A step takes {units.seconds(step.median_s)} ({units.seconds(step.low_s)} to "
        f"{units.seconds(step.high_s)} in the middle half of {found.steps}); predicted "
        f"{units.seconds(plan.estimate.step_s)}.",
        style="bold",
    )
    if found.other_load and found.other_load > BUSY:
        yield Text(
            f"Other processes took {units.percent(found.other_load)} of this machine meanwhile.",
            style="yellow",
        )
    yield Text()
    yield _seconds(plan, found)
    yield Text()
    yield _bytes(plan, found)
    if found.messages or plan.estimate.comm_s:
        yield Text()
        yield _messages(plan, found)
    yield Text()
    for kind, factor in factors.factors.items():
        yield Text(f"{kind}: {factor:.3g} times as long as predicted")
    for kind, reason in factors.refused.items():
        yield Text(f"{kind}: not corrected: {reason}", style="dim")


def _seconds(plan: Plan, found: StepMeasurement) -> Table:
    """Seconds of a step: predicted for each rank of the pipeline, then as measured on its ranks."""
    table = _table("seconds", ("forward", "backward", "compute", "optimizer", "waits"))
    for pp_rank, stage in enumerate(plan.estimate.stages):
        count, optimizer_s = plan.num_microbatches, predicted_optimizer_s(plan, pp_rank)
        predicted = (
            count * stage.forward_s,
            count * stage.backward_s,
            stage.compute_s,
            optimizer_s,
            plan.estimate.step_s - stage.compute_s - optimizer_s,
        )
        table.add_row(_place(plan, pp_rank), *map(units.seconds, predicted))
        for rank in _ranks(found, pp_rank):
            measured = (
                rank.forward_s, rank.backward_s, rank.compute_s, rank.optimizer_s, rank.waiting_s,
            )  # fmt: skip
            table.add_row(f"  measured, rank {rank.rank}", *map(_seconds_or_dash, measured))
    return table


def _bytes(plan: Plan, found: StepMeasurement) -> Table:
    """The same of bytes, without what a process holds before it has tensors."""
    table = _table("bytes", ("parameters", "gradients", "optimizer state", "worst moment"))
    for pp_rank, stage in enumerate(plan.estimate.stages):
        memory = stage.memory
        predicted = (
            memory.parameters + memory.master_weights,
            memory.gradients,
            memory.optimizer_state,
            memory.total - memory.workspace,
        )
        table.add_row(_place(plan, pp_rank), *map(units.nbytes, predicted))
        for rank in _ranks(found, pp_rank):
            held = rank.held_bytes
            counted = (held["parameters"], held["gradients"], held["optimizer_state"])
            table.add_row(
                f"  measured, rank {rank.rank}", *map(units.nbytes, (*counted, rank.peak_bytes))
            )
    return table


def _messages(plan: Plan, found: StepMeasurement) -> Table:
    """What was predicted by kind and axis, and what the backend's own messages took."""
    table = _table("messages of a step", ("number", "seconds, hidden ones too"))
    for name, seconds in plan.estimate.comm_s.items():
        count = plan.estimate.comm_counts.get(name)
        number = _UNKNOWN if count is None else str(count)
        table.add_row(f"predicted: {name}", number, units.seconds(seconds))
    for message in found.messages:
        table.add_row(
            f"measured: {message.kind}", str(message.count), units.seconds(message.seconds)
        )
    return table


def _table(title: str, names: tuple[str, ...]) -> Table:
    table = plain_table()
    table.add_column(title, no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    return table


def _place(plan: Plan, pp_rank: int) -> str:
    return "predicted" if plan.mesh.pp == 1 else f"predicted, pp {pp_rank}"


def _ranks(found: StepMeasurement, pp_rank: int) -> Iterator[RankMeasurement]:
    return (rank for rank in found.ranks if rank.pp_rank == pp_rank)


def _seconds_or_dash(value_s: float | None) -> str:
    return _UNKNOWN if value_s is None else units.seconds(value_s)
