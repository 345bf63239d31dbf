"""Every private name of torch that code generation uses, in one place.

``PRIVATE_NAMES`` lists them, so that a test can name what a new torch release took away.
"""

from __future__ import annotations

from typing import Any

import torch

PRIVATE_NAMES = ("torch._ops.OpOverload",)

OpOverload = torch._ops.OpOverload


def schema(overload: torch._ops.OpOverload) -> Any:
    """An operator's ``arguments`` (name, default_value) and ``returns`` (type)."""
    return overload._schema
