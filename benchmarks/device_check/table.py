"""The outcome of a check as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.device_check.check import Checked, StepFigures


def lines(found: Checked) -> Iterator[str]:
    """A row for each setting, and a line for each largest batch."""
    names = " | ".join(f"{profile}: ms | GiB" for profile in found.profiles)
    yield f"| setting | step ms | GiB | {names} |"
    yield "|---|" + "---|" * (2 + 2 * len(found.profiles))
    for row in found.rows:
        cells = [_cells(row.trained)]
        cells += [
            f"{_cell(each.step_s * 1e3, row.time_error(number))} | "
            f"{_cell(each.peak_bytes / 2**30, row.bytes_error(number))}"
            for number, each in enumerate(row.predicted)
        ]
        yield f"| {row.setting.name} | {' | '.join(cells)} |"
    for each in found.largest:
        said = ", ".join(
            f"{profile} {number}"
            for profile, number in zip(found.profiles, each.predicted, strict=True)
        )
        yield (
            f"Largest batch of {each.setting.name}: {each.fits} fits, "
            f"{each.does_not or 'nothing'} was seen not to; predicted: {said}."
        )
    if found.left:
        yield f"Not reached in time: {'; '.join(found.left)}."


def _cells(trained: StepFigures | None) -> str:
    if trained is None:
        return "out of memory | "
    return f"{trained.step_s * 1e3:.1f} | {trained.peak_bytes / 2**30:.2f}"


def _cell(value: float, error: float | None) -> str:
    return f"{value:.4g}" if error is None else f"{value:.4g} ({error:+.1%})"
