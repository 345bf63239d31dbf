"""Examples of what stands in the graph of one ``cp`` rank alone, as that rank runs it.

Nothing of the package runs these calls: here ranks of ``cp`` all hold the same, and causal queries
are the last share of all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from autoplan.sharding.exchange import EXCHANGE
from autoplan.sharding.rules.attention import CAUSAL_OF_ROWS
from tests.rules.draw import Draw
from tests.rules.oracle import Example

_LIBRARY = torch.library.Library("autoplan", "FRAGMENT")
_LIBRARY.define(
    "exchange(Tensor read, str forward, str backward, int ranks, int? dim, int parts) -> Tensor"
)
_LIBRARY.define(
    "causal_attention_of_rows(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
    "float dropout_p=0.0, bool is_causal=True, *, float? scale=None, bool enable_gqa=False) "
    "-> Tensor"
)
_CP = 2


def _exchanged(
    read: Tensor, forward: str, backward: str, ranks: int, dim: int | None, parts: int
) -> Tensor:
    held = read * (ranks if forward in ("all_reduce", "reduce_scatter") else 1)
    if dim is None:
        return held
    pieces = held.chunk(parts, dim)
    if forward == "all_gather":
        return torch.cat([piece for piece in pieces for _ in range(ranks)], dim)
    return torch.cat([piece.chunk(ranks, dim)[0] for piece in pieces], dim)


def _attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: None = None,
    dropout_p: float = 0.0,
    is_causal: bool = True,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    rows, keys = query.shape[-2], key.shape[-2]
    seen = torch.ones(keys, keys, dtype=torch.bool).tril()[-rows:]
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, seen, scale=scale, enable_gqa=enable_gqa
    )


_LIBRARY.impl("exchange", _exchanged, "CompositeImplicitAutograd")
_LIBRARY.impl("causal_attention_of_rows", _attended, "CompositeImplicitAutograd")


def exchange(draw: Draw, target: str) -> Example:
    forward = draw.of("all_gather", "slice", "reduce_scatter", "identity", "mask", "all_reduce")
    shape = draw.shape(1, 4)
    if forward in ("identity", "mask", "all_reduce"):
        return draw.call(target, draw.floats(*shape), forward, "identity", _CP, None, 1)
    dim, parts = draw.dim(shape) % len(shape), draw.of(1, 2)
    whole = (*shape[:dim], shape[dim] * parts * _CP, *shape[dim + 1 :])
    part = (*shape[:dim], shape[dim] * parts, *shape[dim + 1 :])
    read = part if forward == "all_gather" else whole
    return draw.call(target, draw.floats(*read), forward, "identity", _CP, dim, parts)


def attention_of_rows(draw: Draw, target: str) -> Example:
    batch, heads, rows = draw.of(1, 2), draw.of(draw.ranks, 3), draw.of(draw.ranks, 1, 3)
    groups = draw.of(1, 2, draw.ranks)
    query = draw.floats(batch, heads * groups, rows, 2)
    key = draw.floats(batch, heads, _CP * rows, 2)
    value = draw.floats(batch, heads, _CP * rows, draw.of(2, 4))
    kwargs = {"scale": 0.5, "enable_gqa": groups > 1}
    return draw.call(target, query, key, value, None, 0.0, True, **kwargs)


CALLS = {EXCHANGE: exchange, CAUSAL_OF_ROWS: attention_of_rows}
