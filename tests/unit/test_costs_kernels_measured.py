"""Products and attention against published measurements, set by set."""

import statistics

import pytest

from benchmarks.kernel_rows import rows

BY_SET: dict[str, list[float]] = {}
for row in rows():
    BY_SET.setdefault(row.named, []).append(row.error)

# set -> rows, and what the median and the ninth tenth of its errors may be
LIMITS = {
    "Vidur A100": (40, 0.03, 0.09),
    "Vidur H100": (24, 0.03, 0.05),
    "XLA H100": (73, 0.04, 0.10),
    "XLA B200": (28, 0.04, 0.11),
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
