"""Products and attention against published measurements, set by set."""

import statistics
from pathlib import Path

import pytest

from benchmarks.fit_kernels import FITS, fitted
from benchmarks.fit_kernels import table as fits_table
from benchmarks.kernel_rows import by_set, rows
from benchmarks.kernel_rows import table as errors_table
from hardware_profiles.load import load

DOCS = Path(__file__).parents[2] / "docs" / "costs.md"
BY_SET = by_set()

# set -> rows, and what the median and the ninth tenth of its errors may be
LIMITS = {
    "Vidur A100": (40, 0.03, 0.09),
    "Vidur H100": (24, 0.03, 0.05),
    "XLA H100": (73, 0.04, 0.10),
    "XLA B200": (28, 0.05, 0.11),
    "cookbook A100": (8, 0.05, 0.10),
    "cuDNN H100": (48, 0.06, 0.12),
    "FlashAttention-2 H100": (48, 0.08, 0.14),
    "FlashAttention-3 H100": (48, 0.07, 0.15),
    "FlashAttention-2 A100": (4, 0.04, 0.06),
}


@pytest.mark.parametrize("named", LIMITS)
def test_errors_of_each_set(named):
    found = sorted(abs(error) for error in BY_SET[named])
    count, most, most_of_nine_tenths = LIMITS[named]
    assert len(found) == count
    assert statistics.median(found) <= most
    assert found[int(0.9 * (count - 1))] <= most_of_nine_tenths


def test_no_product_is_faster_than_the_best_one_ever_found():
    assert set(BY_SET) == {*LIMITS, "best found"}
    assert len(BY_SET["best found"]) == 6
    assert min(BY_SET["best found"]) > 0


def test_typical_rates_of_training():
    """Large transformer products: 230 to 255 TFLOP/s on A100, 600 to 730 on H100."""
    for row in rows():
        flops_per_s = row.measured_s and row.work.flops / (row.measured_s * (1 + row.error))
        if row.named in ("Vidur A100", "Vidur H100") and row.work.flops > 1e12:
            low, high = (225e12, 255e12) if "A100" in row.named else (600e12, 730e12)
            assert low < flops_per_s < high


@pytest.mark.parametrize("fit", [fit for fit in FITS if fit.loads], ids=lambda fit: fit.device)
def test_loads_are_those_that_measured_products_tell(fit):
    cluster = "dgx-h100" if "H100" in fit.device else "dgx-b200"
    assert fitted(fit)[1] == load(cluster).device.sm_load_bytes_per_s


@pytest.mark.parametrize("fit", [fit for fit in FITS if not fit.loads], ids=lambda fit: fit.device)
def test_training_is_no_faster_than_its_products_alone(fit):
    """Profiles have what training reaches, at the clocks of whole hours."""
    cluster = "dgx-h100" if "H100" in fit.device else "dgx-a100-80g"
    alone, profile = fitted(fit)[0], load(cluster).device.matmul_efficiency
    assert 0.7 * alone < profile < 1.02 * alone


def test_docs_have_the_fits_and_errors_of_today():
    text = DOCS.read_text()
    assert fits_table() in text
    assert errors_table() in text
