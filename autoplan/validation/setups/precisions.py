"""The dtypes that a row's precision names, in their order."""

from __future__ import annotations

import re

_DTYPES = (
    (r"fp8|float8|8.?bit float", "float8_e4m3fn"),
    (r"bf16|bfloat16", "bfloat16"),
    (r"fp16|float16|half", "float16"),
    (r"tf32|fp32|float32", None),
)
# Words on what products do not multiply: masters, reductions, and what is switched off.
_APART = re.compile(
    r"(fp32|float32)\s*(master|reduce|\+|grad)[\w+ ]*"
    r"|\b(no|without)\s+\w+|\w+\s+(off|disabled)\b"
)


def named_dtypes(precision: str) -> list[str | None]:
    """Names of dtypes, first named first; None stands for one that is not priced."""
    words = _APART.sub(" ", precision.lower())
    found = [
        (match.start(), dtype)
        for pattern, dtype in _DTYPES
        if (match := re.search(pattern, words)) is not None
    ]
    return [dtype for _, dtype in sorted(found, key=lambda each: each[0])]


def eight_bit(precision: str) -> bool:
    """Products multiply 8-bit numbers."""
    first = next(iter(named_dtypes(precision)), None)
    return first is not None and first.startswith("float8")
