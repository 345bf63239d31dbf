"""Examples of what routes tokens to experts, and of layers of experts."""

from __future__ import annotations

import torch

from tests.rules.draw import Draw
from tests.rules.oracle import Example


def topk(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    dim = draw.dim(shape)
    count = draw.of(*range(1, shape[dim] + 1))
    return draw.call(target, draw.floats(*shape), count, dim, draw.of(True, False))


def experts(draw: Draw, target: str) -> Example:
    """Some experts have no token: the first ``used`` are routed to."""
    tokens, hidden, inner, count = draw.size(), draw.size(), draw.of(1, 3), 2 * draw.ranks
    used = draw.of(count, count // 2, 1)
    per_token = draw.of(1, min(2, used))
    scores = torch.rand(tokens, used)
    index = scores.topk(per_token).indices
    return draw.call(
        target,
        draw.floats(tokens, hidden),
        index,
        draw.floats(tokens, per_token),
        draw.floats(count, 2 * inner, hidden),
        draw.floats(count, hidden, inner),
        draw.of("silu", "gelu", "relu"),
    )


CALLS = {
    "aten.topk.default": topk,
    "autoplan.experts.default": experts,
}
