"""Comparison of plain Python values: the arguments and the attributes of a block."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

SIMPLE = (
    int,
    float,
    bool,
    str,
    bytes,
    complex,
    type(None),
    torch.dtype,
    torch.device,
    torch.Size,
    torch.memory_format,
    torch.layout,
)
_DEPTH = 4


def same(first: Any, second: Any) -> bool:
    """Whether two values are surely equal; objects of unknown types only if they are identical."""
    if first is second:
        return True
    if type(first) is not type(second):
        return False
    if isinstance(first, SIMPLE):
        return first == second
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[k], second[k]) for k in first)
    if isinstance(first, (set, frozenset)):
        return first == second
    if type(first) is partial:
        parts = (first.func, first.args, first.keywords, vars(first))
        return same(parts, (second.func, second.args, second.keywords, vars(second)))
    return False


def has_tensor(value: Any, depth: int = _DEPTH) -> bool:
    """Whether a value is, or a container holds, a tensor."""
    if isinstance(value, torch.Tensor):
        return True
    if depth and isinstance(value, (list, tuple, set)):
        return any(has_tensor(item, depth - 1) for item in value)
    return bool(depth) and isinstance(value, dict) and has_tensor(list(value.values()), depth - 1)


def snapshot(value: Any, depth: int = _DEPTH) -> Any:
    """A copy of plain containers, so that changes in place show."""
    if depth and type(value) in (list, tuple):
        return type(value)(snapshot(item, depth - 1) for item in value)
    if depth and type(value) is dict:
        return {key: snapshot(item, depth - 1) for key, item in value.items()}
    return set(value) if type(value) is set else value
