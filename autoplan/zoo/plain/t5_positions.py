"""Relative positions in T5 (Raffel et al. 2020, section 2.1): buckets of distances, and masks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BUCKETS = 32
"""Of all distances together, of which each has a learned bias for each head."""

_LONGEST = 128
"""Distances from here on are of one bucket."""


def buckets(queries: int, keys: int, *, is_causal: bool, device: torch.device) -> Tensor:
    """Bucket numbers ``[queries, keys]``, int64.

    Short distances have a bucket each, half of them all; longer ones share buckets that grow with
    the logarithm. Unless causal, keys ahead have the upper half of the buckets.
    """
    at = torch.arange(queries, dtype=torch.long, device=device)[:, None] + 0
    distance = torch.arange(keys, dtype=torch.long, device=device)[None, :] - at
    number, first = BUCKETS, 0
    if is_causal:
        distance = -torch.min(distance, torch.zeros_like(distance))
    else:
        number //= 2
        first = (distance > 0).to(torch.long) * number + first
        distance = torch.abs(distance)
    exact = number // 2
    is_short = distance < exact
    growth = torch.log(distance.float() / exact) / math.log(_LONGEST / exact)
    shared = exact + (growth * (number - exact)).to(torch.long)
    shared = torch.min(shared, torch.full_like(shared, number - 1))
    return first + torch.where(is_short, distance, shared)


def causal(queries: int, keys: int, device: torch.device) -> Tensor:
    """Whether a query sees a key, ``[1, 1, queries, keys]``."""
    at = torch.arange(queries, device=device)[:, None]
    seen = at >= torch.arange(keys, device=device)[None, :]
    return seen.view(1, 1, queries, keys)
