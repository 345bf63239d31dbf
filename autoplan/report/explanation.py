"""An explanation on a terminal: what binds, what memory is worth, what the others would cost."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autoplan.explanation import Explanation, Memory, Rival, Variant, WhyNot, memory_parts
from autoplan.report import units, words
from autoplan.report.tables import plain_table
from autoplan.report.text import PIPE_WIDTH

_Show = Callable[[float], str]


def print_explanation(found: Explanation, console: Console | None = None) -> None:
    """Prints an explanation, on stdout by default."""
    if console is None:
        console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
    console.print(_headline(found))
    for title, body in _sections(found):
        console.print()
        console.print(Text(title, style="bold"))
        console.print(Padding(body, (0, 0, 0, 2)))


def _headline(found: Explanation) -> RenderableType:
    estimate = found.plan.estimate
    title = Text(f"{found.model} on {found.cluster}", style="bold")
    lines = [title, Text(_decisions(found.plan), style="bold cyan")]
    lines.append(
        Text(
            f"A step takes {units.seconds(estimate.step_s)}, no plan in the space less than "
            f"{units.seconds(found.lower_bound_s)}. It needs "
            f"{units.nbytes(estimate.peak_memory_bytes)} of "
            f"{units.nbytes(estimate.memory_limit_bytes)} a device."
        )
    )
    if not found.is_best:
        lines.append(
            Text("Planning the same job now finds a faster plan: plan again.", style="yellow")
        )
    return Group(*lines)


def _sections(found: Explanation) -> Iterator[tuple[str, RenderableType]]:
    if found.why_not is not None:
        yield f"Why not {_pins(found.why_not.pins)}", _why_not(found.plan, found.why_not)
    if found.memory is not None:
        yield "What binds", _binds(found.plan, found.memory)
    if found.rivals:
        yield "Why it won", _rivals(found.rivals)


def _decisions(plan: Variant) -> str:
    decisions = words.decisions(
        plan.mesh,
        schedule=plan.schedule,
        stages_per_rank=plan.stages_per_rank,
        zero_stage=plan.zero,
        replicas=plan.replicas,
    )
    count = plan.num_microbatches
    pieces = f"{count} microbatch{'es' if count > 1 else ''} of {plan.microbatch}"
    return f"{decisions}, {pieces}, {_recompute(plan)}"


def _recompute(plan: Variant) -> str:
    if plan.recomputes_operators:
        return "recomputing by operator"
    if plan.recomputed_blocks in (0, plan.blocks):
        return "all blocks recomputed" if plan.recomputed_blocks else "nothing recomputed"
    return f"{plan.recomputed_blocks} of {plan.blocks} blocks recomputed"


def _pins(pins: Mapping[str, int | str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in pins.items())


def _binds(plan: Variant, memory: Memory) -> RenderableType:
    limit = plan.estimate.memory_limit_bytes
    if not memory.binds:
        free = limit - plan.estimate.peak_memory_bytes
        return Text(
            f"Not memory: {units.nbytes(free)} of the limit are left, and no plan is faster with "
            "any amount more."
        )
    unlimited = memory.unlimited
    lines: list[RenderableType] = [
        Text(
            f"Memory: without a limit a step would take {units.seconds(unlimited.estimate.step_s)}"
            f" ({_decisions(unlimited)}), which needs {units.nbytes(memory.needed_bytes)} more a "
            "device than there is."
        )
    ]
    table = _table("more memory", "step", "difference", "with")
    for step in memory.more:
        table.add_row(
            f"+{units.nbytes(step.added_bytes)}",
            units.seconds(step.plan.estimate.step_s),
            _signed(step.difference_s, units.seconds),
            _decisions(step.plan) if step.difference_s else "this plan",
        )
    return Group(*lines, Padding(table, (1, 0, 0, 0)))


def _rivals(rivals: tuple[Rival, ...]) -> RenderableType:
    lines: list[RenderableType] = []
    for rival in rivals:
        lines.append(Text(f"{rival.alternative.name}: {rival.alternative.reason}"))
        pins = " ".join(f"--pin {name}={value}" for name, value in rival.pins.items())
        lines.append(Padding(Text(pins, style="dim"), (0, 0, 0, 2)))
    return Group(*lines)


def _why_not(plan: Variant, answer: WhyNot) -> RenderableType:
    if answer.plan is None:
        return Text(f"It cannot be: {answer.reason}.")
    lines: list[RenderableType] = [Text(_answer(plan, answer, answer.plan))]
    if answer.verdict == "does not fit":
        lines.append(Text("Below, the fastest with the pins if memory were unlimited."))
    if answer.plan.mesh.cp > 1:
        lines.append(Text("Planned only: no run splits tokens over ranks of their own yet."))
    lines.append(Text(_decisions(answer.plan), style="cyan"))
    table = _table("", "this plan", "with the pins", "difference")
    for field, name in words.COMPONENTS.items():
        ours, theirs = (getattr(p.estimate, field) for p in (plan, answer.plan))
        _add(table, name, ours, theirs, answer.time_difference_s[field], units.seconds)
    ours, theirs = plan.estimate, answer.plan.estimate
    _add(table, "step", ours.step_s, theirs.step_s, answer.step_difference_s, units.seconds, "bold")
    table.add_row()
    ours, theirs = memory_parts(plan.memory), memory_parts(answer.plan.memory)
    for field, difference in answer.memory_difference_bytes.items():
        _add(table, words.MEMORY_NAMES[field], ours[field], theirs[field], difference, units.nbytes)
    more = sum(answer.memory_difference_bytes.values())
    _add(table, "memory", sum(ours.values()), sum(theirs.values()), more, units.nbytes, "bold")
    return Group(*lines, Padding(table, (1, 0, 0, 0)))


def _answer(plan: Variant, answer: WhyNot, other: Variant) -> str:
    if answer.verdict == "does not fit":
        return f"{answer.reason[0].upper()}{answer.reason[1:]}."
    ours_s, theirs_s = plan.estimate.step_s, other.estimate.step_s
    against = f"{units.seconds(theirs_s)} a step against {units.seconds(ours_s)}"
    if answer.verdict == "as fast":
        return f"It is as fast, within what the search resolves: {against}."
    share = units.percent(abs(theirs_s / ours_s - 1))
    return f"It is {share} {answer.verdict}: {against}."


def _table(*columns: str) -> Table:
    table = plain_table()
    for number, name in enumerate(columns):
        is_text = number == 0 or name == "with"
        table.add_column(name, justify="left" if is_text else "right", no_wrap=name != "with")
    return table


def _add(
    table: Table, name: str, ours: float, theirs: float, difference: float, show: _Show,
    style: str = "",
) -> None:  # fmt: skip
    """A row of the comparison; what neither plan has is left out."""
    if ours or theirs:
        table.add_row(name, show(ours), show(theirs), _signed(difference, show), style=style)


def _signed(value: float, show: _Show) -> str:
    return f"+{show(value)}" if value > 0 else show(value)
