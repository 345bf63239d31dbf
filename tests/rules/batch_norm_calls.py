"""Examples of BatchNorm that takes statistics, on samples of channels by places."""

from __future__ import annotations

import torch

import autoplan.trace.batch_norm  # noqa: F401  (registers the operator)
from tests.rules.draw import Draw
from tests.rules.oracle import Example


def batch_norm(draw: Draw, target: str) -> Example:
    """Of two samples at least: one value of a channel has no variance."""
    channels = draw.size()
    x = draw.floats(2 * draw.size(), channels, *draw.shape(0, 2))
    weight, bias = (draw.of(None, draw.floats(channels)) for _ in range(2))
    tracks = draw.of(True, False)
    kept = (torch.zeros(channels).double(), torch.ones(channels).double(), torch.tensor(0))
    mean, var, tracked = kept if tracks else (None, None, None)
    return draw.call(target, x, weight, bias, mean, var, tracked, True, 0.1, 1e-5)


CALLS = {"autoplan.batch_norm.default": batch_norm}
