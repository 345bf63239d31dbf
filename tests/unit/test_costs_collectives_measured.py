"""Collectives against published measurements, set by set, and the fits that rest on them."""

import statistics

import pytest

from benchmarks.collective_rows import by_set, clusters, errors, read
from benchmarks.collective_rows import table as errors_table
from benchmarks.fit_collectives import CARRIED, FITS, LINKS, fitted, in_file
from benchmarks.fit_collectives import table as constants_table

ROWS, UNPRICED = read()
ON = clusters()

# set -> rows, and what the median and the ninth tenth of its errors may be
LIMITS = {
    "ml-engineering A100": (20, 0.04, 0.24),
    "ml-engineering B200, one node": (20, 0.04, 0.19),
    "ml-engineering B200, four nodes": (20, 0.06, 0.95),  # three cold runs below 256 KiB
    "ml-engineering unnamed, four nodes": (20, 0.03, 0.26),
    "ml-engineering MI300X": (2, 0.04, 0.07),
    "peaks in one node": (5, 0.09, 0.12),
    "peaks between nodes": (5, 0.04, 0.08),
    "vTrain A100": (77, 0.06, 0.21),
    "vTrain V100": (77, 0.02, 0.11),
    "Galvatron A100-like, one node": (42, 0.06, 0.23),
    "Galvatron A100-like, all-to-all": (33, 0.06, 0.19),
    "Galvatron A100-like, two nodes": (8, 0.30, 0.55),  # misses a tenth: network not named
}


@pytest.mark.parametrize(("named", "rows"), list(by_set(ROWS)))
def test_errors_of_each_set(named, rows):
    found = errors(rows, ON)
    median, ninth = statistics.median(found), found[len(found) * 9 // 10]
    print(f"{named}: {len(found)} rows, median {median:.1%}, p90 {ninth:.1%}, max {found[-1]:.1%}")
    count, most, most_of_nine_tenths = LIMITS[named]
    assert (len(found), median <= most, ninth <= most_of_nine_tenths) == (count, True, True)


def test_all_rows_together_are_within_a_tenth():
    found = errors(ROWS, ON)
    assert statistics.median(found) < 0.05
    assert found[len(found) * 9 // 10] < 0.25


def test_every_row_is_priced_or_named():
    assert len(ROWS) + len(UNPRICED) == 340
    assert all(reason for _, reason in UNPRICED)


@pytest.mark.parametrize("fit", FITS, ids=lambda fit: fit.link)
def test_fitted_constants_say_so(fit):
    lines = (LINKS / f"{fit.link}.toml").read_text().splitlines()
    for name in fit.constants:
        (line,) = [line for line in lines if line.startswith(f"{name} = ")]
        assert 'provenance = "fitted"' in line


@pytest.mark.slow
@pytest.mark.parametrize("fit", FITS, ids=lambda fit: fit.link)
def test_fitting_gives_the_constants_of_the_files(fit):
    assert fitted(fit, ROWS, ON) == in_file(fit.link, fit.constants)


def test_fitting_one_constant_gives_that_of_the_file():
    (fit,) = [fit for fit in FITS if len(fit.constants) == 1]
    assert fitted(fit, ROWS, ON) == in_file(fit.link, fit.constants)


@pytest.mark.parametrize(("target", "source", "constants"), CARRIED)
def test_constants_taken_over_are_those_of_the_source(target, source, constants):
    assert in_file(target, constants) == in_file(source, constants)


def test_docs_have_the_constants_and_errors_of_today():
    text = (LINKS.parents[2] / "docs" / "costs.md").read_text()
    assert constants_table() in text
    assert errors_table(ROWS, ON) in text
