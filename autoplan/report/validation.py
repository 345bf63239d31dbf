"""Predictions beside published measurements on a terminal: a table a set, then the summary."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autoplan.report import units
from autoplan.report.tables import add_figures, plain_table
from autoplan.validation.predict import Prediction
from autoplan.validation.scores import Errors, Summary, by_set, summarise
from autoplan.validation.setups.setup import Setup

_PIPE_WIDTH = 100
_AXES = ("tp", "pp", "dp", "cp", "ep")
_IDS_SHOWN = 4


def print_validation(
    predictions: Sequence[Prediction], notes: Sequence[str], console: Console | None = None
) -> None:
    """Prints every set and the summary, 100 columns wide where stdout is no terminal."""
    if console is None:
        console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    sets = by_set(predictions)
    for note in notes:
        console.print(Text(f"Note: {note}", style="yellow"))
    for name, members in sets.items():
        _print_set(console, name, members)
    summaries = {name: summarise(members) for name, members in sets.items()}
    if len(sets) > 1:
        summaries["all sets"] = summarise(predictions)
    _print_summary(console, summaries)


def _print_set(console: Console, name: str, members: Sequence[Prediction]) -> None:
    priced = [each for each in members if each.priced]
    console.print()
    title = Text(name, style="bold")
    rows = "1 row" if len(members) == 1 else f"{len(members)} rows"
    title.append(f"  {rows}, {len(priced)} priced", style="not bold")
    if not any(each.row.scored for each in members):
        title.append(f", quality {_qualities(members)}: not scored", style="not bold yellow")
    console.print(title)
    if priced:
        console.print(Padding(_rows(priced, console.width), (0, 0, 0, 2)))
    _print_reasons(console, "Assumed", _by_reason(members, lambda each: each.assumed))
    skipped = _by_reason(members, lambda each: (each.skipped,) if each.skipped else ())
    _print_reasons(console, "Not priced", skipped)


def _rows(priced: Sequence[Prediction], width: int) -> Table:
    """Figures stand whole; meshes wrap, and models are left out where the terminal is narrow."""
    timed = any(_reports_time(each) for each in priced)
    weighed = any(_tells_memory(each) for each in priced)
    table = plain_table(apart=1)
    roomy = not (timed and weighed) and width >= _PIPE_WIDTH
    table.add_column("run", no_wrap=True, overflow="ellipsis", max_width=30 if roomy else 22)
    if roomy:
        table.add_column("model", no_wrap=True, overflow="ellipsis", max_width=22)
    table.add_column("mesh, microbatches", overflow="fold", min_width=12)
    if timed:
        add_figures(table, "step", "reported", "error")
    if weighed or not timed:
        add_figures(table, "memory", "reported", "error")
    for each in priced:
        cells = [Text(each.row.id)]
        if roomy:
            cells.append(Text(each.row.model))
        cells.append(Text(_configuration(each.setup)))
        if timed:
            cells += _time_cells(each)
        if weighed or not timed:
            cells += _memory_cells(each)
        table.add_row(*cells, style="" if each.row.scored else "dim")
    return table


def _reports_time(prediction: Prediction) -> bool:
    return prediction.row.step_time_s is not None and prediction.predicted_s is not None


def _tells_memory(prediction: Prediction) -> bool:
    weighed = prediction.reported_bytes is not None or prediction.row.oom
    return bool(weighed or _wrongly_too_large(prediction))


def _wrongly_too_large(prediction: Prediction) -> bool:
    """Said not to fit, though it ran."""
    return bool(prediction.out_of_memory) and prediction.reported_out_of_memory is False


def _time_cells(prediction: Prediction) -> list[Text]:
    return [
        _optional(prediction.predicted_s, units.seconds),
        _optional(prediction.row.step_time_s, units.seconds),
        _error(prediction.error),
    ]


def _memory_cells(prediction: Prediction) -> list[Text]:
    reported = _optional(prediction.reported_bytes, units.nbytes)
    if prediction.row.oom:
        reported = Text("no fit")
        error = Text("no fit", style="green")
        if not prediction.out_of_memory:
            error = Text("fits", style="red")
    elif _wrongly_too_large(prediction):
        error = Text("no fit", style="red")
    else:
        error = _error(prediction.mem_error)
    return [_optional(prediction.predicted_bytes, units.nbytes), reported, error]


def _configuration(setup: Setup | None) -> str:
    """``tp 8 pp 12 dp 4, 384 x 1``: the mesh, and microbatches of so many sequences."""
    if setup is None:
        return ""
    axes = [f"{axis} {getattr(setup, axis)}" for axis in _AXES if getattr(setup, axis) > 1]
    return f"{' '.join(axes) or '1 GPU'}, {setup.microbatches} x {setup.microbatch}"


def _by_reason(
    members: Sequence[Prediction], reasons_of: Callable[[Prediction], Iterable[str]]
) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in members:
        for reason in reasons_of(each):
            found.setdefault(reason, []).append(each.row.id)
    return found


def _print_reasons(console: Console, title: str, reasons: dict[str, list[str]]) -> None:
    if not reasons:
        return
    console.print(Padding(Text(f"{title}:", style="dim"), (0, 0, 0, 2)))
    for reason, ids in reasons.items():
        shown = ", ".join(ids[:_IDS_SHOWN])
        more = f" and {len(ids) - _IDS_SHOWN} more" if len(ids) > _IDS_SHOWN else ""
        line = Text(reason)
        line.append(f"  {shown}{more}", style="dim")
        console.print(Padding(line, (0, 0, 0, 4)))


def _print_summary(console: Console, summaries: dict[str, Summary]) -> None:
    _section(console, "Step time, |predicted / reported - 1|, quality A and B", _steps(summaries))
    if (last := list(summaries.values())[-1]).complete:
        _print_coverage(console, last)
    weighed = {name: each for name, each in summaries.items() if _tells_of_memory(each)}
    if weighed:
        _section(console, "Memory, and whether it fits", _memory(weighed))
    ranked = {name: each for name, each in summaries.items() if each.ranking}
    if ranked:
        title = "Choosing among 3 or more runs of the same work on the same devices"
        _section(console, title, _ranking(ranked))


def _print_coverage(console: Console, summary: Summary) -> None:
    share = f"{summary.complete_priced} of {summary.complete}"
    line = f"{share} rows of quality A and B that state their whole configuration are priced."
    console.print(Padding(Text(line, style="dim"), (1, 0, 0, 2)))


def _section(console: Console, title: str, body: Table) -> None:
    console.print()
    console.print(Text(title, style="bold"))
    console.print(Padding(body, (0, 0, 0, 2)))


def _summary_table(*columns: str) -> Table:
    table = plain_table()
    table.add_column("set", overflow="ellipsis", max_width=30)
    add_figures(table, *columns)
    return table


def _steps(summaries: dict[str, Summary]) -> Table:
    table = _summary_table("rows", "priced", "scored", "median", "mean", "p90", "max", "rank corr.")
    for name, each in summaries.items():
        table.add_row(
            Text(name),
            str(each.rows),
            str(each.priced),
            *_error_cells(each.step),
            _correlation(each.rank_correlation),
            style=_style(name),
        )
    return table


def _memory(summaries: dict[str, Summary]) -> Table:
    table = _summary_table("scored", "median", "mean", "p90", "max", "fit, called so", "no fit, so")
    for name, each in summaries.items():
        calls = each.out_of_memory
        table.add_row(
            Text(name),
            *_error_cells(each.memory),
            _called(calls.fits_rightly, calls.out_of_memory_wrongly) if calls else "-",
            _called(calls.out_of_memory_rightly, calls.fits_wrongly) if calls else "-",
            style=_style(name),
        )
    return table


def _called(rightly: int, wrongly: int) -> str:
    return f"{rightly} of {rightly + wrongly}" if rightly + wrongly else "-"


def _ranking(summaries: dict[str, Summary]) -> Table:
    table = _summary_table("groups", "rows", "rank corr.", "regret median", "regret p90")
    for name, each in summaries.items():
        if each.ranking is not None:
            table.add_row(
                Text(name),
                str(each.ranking.groups),
                str(each.ranking.rows),
                _correlation(each.ranking.rank_correlation),
                units.percent(each.ranking.regret_median),
                units.percent(each.ranking.regret_p90),
                style=_style(name),
            )
    return table


def _tells_of_memory(summary: Summary) -> bool:
    """Memory was compared, a run did not fit, or one that did was said not to."""
    calls = summary.out_of_memory
    if summary.memory is not None or calls is None:
        return summary.memory is not None
    return calls.out_of_memory_rightly + calls.fits_wrongly + calls.out_of_memory_wrongly > 0


def _style(name: str) -> str:
    return "bold" if name == "all sets" else ""


def _error_cells(errors: Errors | None) -> tuple[str, ...]:
    if errors is None:
        return ("0", "-", "-", "-", "-")
    figures = (errors.median, errors.mean, errors.p90, errors.max)
    return (str(errors.rows), *(units.percent(figure) for figure in figures))


def _correlation(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _optional(value: float | None, shown: Callable[[float], str]) -> Text:
    return Text("-") if value is None else Text(shown(value))


def _error(error: float | None) -> Text:
    if error is None:
        return Text("-")
    size = abs(error)
    style = "green" if size <= 0.1 else "yellow" if size <= 0.25 else "red"
    return Text(f"{round(100 * error, 1) + 0.0:+.1f} %", style=style)


def _qualities(members: Sequence[Prediction]) -> str:
    return ", ".join(sorted({each.row.quality for each in members}))
