"""Pretty units; the rest of the code base keeps to SI numbers."""

from __future__ import annotations

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_BYTES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_COUNTS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def seconds(value_s: float) -> str:
    """``0.01234`` as ``12.3 ms``; zero as ``0 s``."""
    return _scaled(value_s, _SECONDS, f"{value_s:.1e} s") if value_s else "0 s"


def nbytes(value: float) -> str:
    """``5 * 2**30`` as ``5.00 GiB``."""
    return _scaled(value, _BYTES, f"{value:.0f} B")


def count(value: float) -> str:
    """``1234567`` as ``1.23M``."""
    return _scaled(value, _COUNTS, f"{value:.3g}").replace(" ", "")


def percent(fraction: float) -> str:
    """``0.126`` as ``13 %``, ``0.034`` as ``3.4 %``; ``0 %`` only for zero."""
    if fraction == 0:
        return "0 %"
    if abs(fraction) < 0.0005:
        return "< 0.1 %"
    return f"{100 * fraction:.0f} %" if fraction >= 0.0995 else f"{100 * fraction:.1f} %"


def _scaled(value: float, units: tuple[tuple[float, str], ...], small: str) -> str:
    for size, unit in units:
        if abs(value) >= size * 0.9995:
            return f"{_digits(value / size)} {unit}"
    return small


def _digits(value: float) -> str:
    """Three significant digits without an exponent."""
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{decimals}f}"
