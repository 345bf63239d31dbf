"""Context parallelism: the graph of one of the ranks that share samples and split their tokens.

``cp`` ranks have the same samples and whole weights; each computes its share of every sample's
tokens. Which dim of a tensor is its tokens, and which operators can have a share of them, follows
from the rules of operators (``walk``). Where one needs all tokens (keys and values of attention),
or a sum over them, a message over ``cp`` stands in the graph as a call (``sharding.exchange``).
What comes of that is an ``OpGraph`` like any other (``rewrite``): everything else, placements on
``tp`` too, is decided and priced on it as on that of a whole model.

Causal attention would give the last of equal neighbouring shares the most keys. Here a rank has two
chunks of the sequence, one from the front and its mirror image from the back, so that all have as
many (Llama 3, arXiv:2407.21783, section 3.3.2); keys and values are gathered as there.
"""

from __future__ import annotations

from autoplan.sharding.context.rewrite import rank_graph
from autoplan.sharding.context.starts import fewest_tokens
from autoplan.sharding.context.walk import token_layout
from autoplan.trace.graph import OpGraph

__all__ = ["context_graph", "fewest_tokens"]


def context_graph(graph: OpGraph, cp: int) -> OpGraph:
    """The graph of one of ``cp`` ranks; that of the whole model for one.

    Raises:
        PlanError: tokens cannot be split, with the call that needs all of them.
    """
    return rank_graph(graph, token_layout(graph, cp), cp) if cp > 1 else graph
