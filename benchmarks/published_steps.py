"""Errors of predicted step time and memory by set of published runs, as docs/costs.md prints them.

python -m benchmarks.published_steps
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path

from autoplan.validation.predict import Prediction, predictions_of
from autoplan.validation.published.rows import read_rows
from autoplan.validation.scores import Errors, Summary, by_set, summarise

DATA = Path(__file__).parent / "data"
HEADER = "| set | rows | median | mean | p90 | largest |\n|---|---|---|---|---|---|"
ALL = "all rows but the sweeps"


def predictions(file: str) -> tuple[Prediction, ...]:
    """All rows of one file of ``benchmarks/data``."""
    return predictions_of(read_rows(DATA / file).rows)


def main() -> None:
    """Prints step times, then memory, then the order of configurations of the same work."""
    single, sweeps = predictions("training.csv"), predictions("training_bulk.csv")
    by_name = {name: summarise(rows) for name, rows in by_set(single).items()}
    whole = summarise(single)
    beside = {name: summarise(rows) for name, rows in by_set(sweeps).items()}
    print(_table("Step time", {n: s.step for n, s in {**by_name, ALL: whole, **beside}.items()}))
    print(_table("Memory", {n: s.memory for n, s in {**by_name, ALL: whole}.items()}))
    medians = [summary.step.median for summary in by_name.values() if summary.step]
    print(f"Mean of the sets' medians of step time: {100 * statistics.mean(medians):.1f} %")
    print(f"Priced: {whole.complete_priced} of {whole.complete} complete rows\n")
    for name, summary in {ALL: whole, **beside, "all": summarise((*single, *sweeps))}.items():
        _print_order(name, summary)


def _table(title: str, errors: Mapping[str, Errors | None]) -> str:
    lines = [f"{title}:", "", HEADER]
    for name, each in errors.items():
        if each is not None:
            percents = (f"{100 * e:.1f} %" for e in (each.median, each.mean, each.p90, each.max))
            lines.append(f"| {name} | {each.rows} | {' | '.join(percents)} |")
    return "\n".join([*lines, ""])


def _print_order(name: str, summary: Summary) -> None:
    ranking, fits = summary.ranking, summary.out_of_memory
    if ranking is not None:
        print(
            f"{name}: {ranking.groups} groups of the same work, rank correlation"
            f" {ranking.rank_correlation:.3f}, loss by the predicted best"
            f" {100 * ranking.regret_median:.1f} % (median), {100 * ranking.regret_p90:.1f} % (p90)"
        )
    if fits is not None:
        print(
            f"{name}: out of memory {fits.out_of_memory_rightly} predicted,"
            f" {fits.fits_wrongly} missed; fit {fits.fits_rightly} predicted,"
            f" {fits.out_of_memory_wrongly} missed"
        )


if __name__ == "__main__":
    main()
