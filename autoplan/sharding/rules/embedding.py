"""Lookups in tables: rows one by one, and bags of them.

A table is split by its columns or by its rows. Splitting the rows needs a stand-in: a rank answers
for the rows that it has and gives zero for the others, so that the sum over the ranks is the
lookup. Tables of equal size that are stacked in one weight are dealt out whole by the same split.
Single tables of other sizes are not: no placement says that one rank has all of a tensor.
"""

from __future__ import annotations

from autoplan.sharding.equation import Equation, LocalOp
from autoplan.sharding.rules.base import Call, letters, names, sizes


def _embedding(call: Call) -> Equation:
    """Gradients scaled by how often an index occurs in the call forbid splitting the indices."""
    table, index = call.shapes
    tokens = letters(index)
    by_frequency = call.argument(3, "scale_grad_by_freq", False)
    return Equation(
        inputs=((("v",), ("m",)), tokens),
        outputs=((*tokens, ("m",)),),
        sizes={**sizes(index), "v": table[0], "m": table[1]},
        whole=(names(range(len(index))) if by_frequency else frozenset())
        | ({"v"} if by_frequency or not index else set()),
        local_ops={"v": LocalOp("vocab_parallel_embedding")},
    )


def _bags(call: Call) -> Equation:
    """Rows and entries of a bag are summed over, unless it takes another mean or the maximum.

    Bags that start at offsets are not split by samples: a rank with some would need other offsets.
    """
    table, index = call.shapes[:2]
    mode = call.node.args[4]
    starts = call.node.args[2] is not None
    entries = (("n",),) if starts else (("b",), ("l",))
    extents = {"n": index[0]} if starts else {"b": index[0], "l": index[1]}
    whole = {"n", "b", "o"} if starts else set[str]()
    whole |= {"l"} if mode != "sum" else set()
    whole |= {"v"} if mode == "max" or (starts and mode == "mean") else set()
    offsets = ((("o",),),) * starts
    return Equation(
        inputs=((("v",), ("m",)), entries, *offsets, *(entries,) * (len(call.inputs) - 2 - starts)),
        outputs=((("b",), ("m",)),),
        sizes={
            **extents,
            "b": call.outputs[0].shape[0],
            "o": call.shapes[2][0] if starts else 1,
            "v": table[0],
            "m": table[1],
        },
        whole=frozenset(whole),
        local_ops={"v": LocalOp("vocab_parallel_bags")},
    )


RULES = {
    "aten.embedding.default": _embedding,
    "autoplan.bags.default": _bags,
}
