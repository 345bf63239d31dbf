"""Scaled dot product attention: batch, heads and queries split, keys and head sizes stay whole.

With grouped queries the query heads are (kv head ``h``, query within its group ``r``): splitting
``h`` splits queries, keys and values together; splitting ``r`` keeps keys and values whole. So does
splitting the positions ``s`` of the queries, where ranks have all keys and values (as the gathered
context parallelism of Llama 3, arXiv:2407.21783, section 3.3.2); under a causal mask a stand-in
knows where its queries stand. Where ``cp`` has split them already, that stand-in is the call
itself (``sharding.context``), and they are split no further.
"""

from __future__ import annotations

from autoplan.sharding.equation import Dims, Equation, Letters, LocalOp, Shape
from autoplan.sharding.rules.base import Call

_IS_CAUSAL, _ENABLE_GQA = 5, 7
_OF_ROWS = "causal_attention_of_rows"
CAUSAL_OF_ROWS = f"autoplan.{_OF_ROWS}.default"
"""Causal attention of a rank's share of the queries to all keys."""


def _attention(call: Call) -> Equation | None:
    query, key, value = call.shapes[:3]
    lead, rank = query[:-2], len(query)
    if not lead or any(len(shape) != rank for shape in (key, value)):
        return None
    grouped = call.argument(_ENABLE_GQA, "enable_gqa", False)
    heads, shared = lead[-1], key[-3]
    if key[:-1] != value[:-1] or lead[:-1] != key[:-3] or not (grouped or heads == shared):
        return None
    sizes = {
        **{f"d{dim}": size for dim, size in enumerate(lead[:-1])},
        "h": shared, "r": heads // shared,
        "s": query[-2], "t": key[-2], "d": query[-1], "e": value[-1],
    }  # fmt: skip
    batch: Dims = tuple((f"d{dim}",) for dim in range(len(lead) - 1))
    q_heads: Dims = (*batch, ("h", "r"))
    kv_heads: Dims = (*batch, ("h",))
    causal = call.argument(_IS_CAUSAL, "is_causal", False)
    whole = {"t", "d", "e"} | ({"s"} if causal and sizes["s"] != sizes["t"] else set())
    inputs: list[Dims] = [
        (*q_heads, ("s",), ("d",)), (*kv_heads, ("t",), ("d",)), (*kv_heads, ("t",), ("e",))
    ]  # fmt: skip
    if len(call.inputs) == 4:
        scores = (*lead, query[-2], key[-2])
        inputs.append(_mask((*q_heads, ("s",), ("t",)), scores, call.shapes[3]))
    return Equation(
        inputs=tuple(_without_ones(dims, sizes) for dims in inputs),
        outputs=(_without_ones((*q_heads, ("s",), ("e",)), sizes),),
        sizes=sizes,
        whole=frozenset(whole),
        local_ops={"s": LocalOp(_OF_ROWS)} if causal else {},
    )


def _mask(scores: Dims, result: Shape, shape: Shape) -> Dims:
    """Letters of a mask that is broadcast to the scores."""
    offset = len(result) - len(shape)
    return tuple(
        scores[dim + offset] if size == result[dim + offset] else ()
        for dim, size in enumerate(shape)
    )


def _without_ones(dims: Dims, sizes: dict[str, int]) -> Dims:
    def kept(letters: Letters) -> Letters:
        return tuple(letter for letter in letters if sizes[letter] != 1)

    return tuple(kept(letters) for letters in dims)


RULES = {
    "aten.scaled_dot_product_attention.default": _attention,
    CAUSAL_OF_ROWS: _attention,
}
