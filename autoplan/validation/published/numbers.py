"""Numbers as people write them in tables: ``48 (assumed)``, ``1,024``, ``3 (FSDP 8)``.

The number that a cell starts with counts; what follows is a note. Cells that say that nothing is
known are empty. A cell that holds text without a number, or several numbers where one is wanted
(``16x8``, ``3-4``, ``3,5``), is a fault of its row, never a guess.
"""

from __future__ import annotations

import math
import re

_NOTHING = frozenset(
    ("", "-", "--", "?", "n/a", "na", "nan", "none", "null", "unknown", "not stated", "not given")
)
_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][+-]?\d+)?")
_ANYWHERE = re.compile(r"\d{1,3}(?:,\d{3})+|\d+")
_THOUSANDS = re.compile(r"(\d+)\s*k\b", re.IGNORECASE)
_UNIT = re.compile(r"(\s*)([a-zµ%_]+)", re.IGNORECASE)
_GOES_ON = re.compile(r"\s*(?:[x×*/^:±–—,.-]+|k\s*[–—-]|to\b|or\b)?\s*\d", re.IGNORECASE)
_PLAIN_UNITS = frozenset(("g", "gb", "gib", "s", "sec", "x"))
_OTHER_UNITS = frozenset(("ms", "us", "µs", "min", "mins", "minutes", "h", "hours", "k", "m", "%"))
_STAGE = re.compile(r"(?:zero)?[\s_-]*(?:stage)?[\s_-]*([0-3])(?![\d.])", re.IGNORECASE)
_STAGE_WORDS = (
    (re.compile(r"fsdp2?\W*(?:zero|stage)[\s_-]*2\b"), 2),
    (re.compile(r"_?hybrid_shard_zero2|shard_grad_op"), 2),
    (re.compile(r"[fh]sdp|fully sharded|full_shard|_?hybrid[ _-]?shard|shard\w* (with)?in"), 3),
    (re.compile(r"dist(?:ributed)?[ _-]?opt"), 1),
    (re.compile(r"ddp|no_shard|(?:none|no|off)$"), 0),
)
_SMALLEST = 1e-9
_LARGEST = 10**12


class NumberFault(ValueError):  # noqa: N818 - becomes the reason why a row is not priced
    """A cell that should hold a number and does not; the message says what it holds."""


def says_nothing(text: str) -> bool:
    """Whether a cell leaves its value open."""
    return text.strip().lower() in _NOTHING


def real(text: str) -> float | None:
    """The number that the cell starts with; None where it leaves it open.

    Raises:
        NumberFault: text that does not start with a number, or with several, or one that is not
            positive and finite.
    """
    cell = text.strip().lstrip("~≈ ")
    if says_nothing(cell):
        return None
    found = _NUMBER.match(cell)
    digits = found.group().replace(",", "") if found else ""
    try:
        value = float(digits)
    except ValueError:
        raise NumberFault(f"{_quoted(text)} is not a number") from None
    if not (math.isfinite(value) and 0 < value <= _LARGEST):
        raise NumberFault(f"{_quoted(text)} is not a positive number")
    if value < _SMALLEST:
        raise NumberFault(f"{_quoted(text)} is less than {_SMALLEST:g}")
    end = found.end() if found else 0
    _refuse_several(cell, end)
    unit = _UNIT.match(cell, end)
    if unit and (unit[2].lower() in _OTHER_UNITS or not (unit[1] or _is_plain(unit[2]))):
        raise NumberFault(f"{_quoted(text)} has the unit {unit[2]}; expected a plain number")
    return value


def count(text: str) -> int | None:
    """As ``real``, for whole numbers (``128.0`` is one)."""
    value = real(text)
    if value is None:
        return None
    if value != int(value):
        raise NumberFault(f"{_quoted(text)} is not a whole number")
    return int(value)


def length(text: str) -> int | None:
    """Tokens of a sequence: the first number of the cell, wherever it stands; ``8k`` is 8192."""
    if says_nothing(text):
        return None
    thousands = _THOUSANDS.match(text.strip())
    if thousands:
        _refuse_several(text.strip(), thousands.end() - 1)
        return 1024 * int(thousands[1])
    if text.strip()[0].isdigit():
        return count(text)
    found = _ANYWHERE.search(text)
    if found is None:
        raise NumberFault(f"{_quoted(text)} holds no number of tokens")
    return count(found.group())


def zero_stage(text: str) -> int | None:
    """``3``, ``ZeRO-1``, ``1 (distributed optimizer)``, ``FSDP``, ``HSDP``: the stage, 0 to 3."""
    cell = text.strip().lower()
    if cell != "none" and says_nothing(cell):
        return None
    found = _STAGE.match(cell)
    if found:
        _refuse_several(cell, found.end())
        return int(found.group(1))
    for words, stage in _STAGE_WORDS:
        if words.match(cell):
            return stage
    raise NumberFault(f"{_quoted(text)} is not one ZeRO stage")


def flag(text: str) -> bool | None:
    """``yes``, ``True (assumed)``, ``0``: what the cell starts with."""
    if says_nothing(text):
        return None
    word = re.split(r"[\s(,;]", text.strip().lower(), maxsplit=1)[0]
    if word in ("yes", "true", "y", "on", "1", "1.0", "oom"):
        return True
    if word in ("no", "false", "n", "off", "0", "0.0"):
        return False
    raise NumberFault(f"{_quoted(text)} is neither yes nor no")


def _refuse_several(cell: str, end: int) -> None:
    """Refuses a cell in which the number that ends at ``end`` is one of several."""
    if _GOES_ON.match(cell, end):
        raise NumberFault(
            f"{_quoted(cell)} holds several numbers; expected one, with a decimal point"
        )


def _is_plain(unit: str) -> bool:
    return unit.lower() in _PLAIN_UNITS


def _quoted(text: str) -> str:
    shown = " ".join(text.split())
    return repr(shown if len(shown) <= 40 else shown[:37] + "...")
