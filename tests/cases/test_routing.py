"""Tokens that are routed to experts: sizes do not follow the route, nor what runs again, nor bytes.

A backward that runs a forward again must see the same shapes as before. Routing by a mask makes
sizes of the data; experts as one operator have the sizes of all routed tokens, however they fall.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from autoplan.codegen.again import Again
from autoplan.codegen.pipeline import emit_choices
from autoplan.errors import UnsupportedModelError
from autoplan.trace.capture import capture
from autoplan.trace.experts import EXPERTS
from autoplan.trace.needed import needed_of_block
from tests.parity.choose import replicated
from tests.parity.models import initialise
from tests.parity.simulate import assert_same, one_device, sharded

WIDTH, INNER, LENGTH, BATCH = 8, 6, 5, 4
FLOAT_BYTES, NUMBER_BYTES, END_BYTES = 8, 8, 4


class Routed(nn.Module):
    """A dropout, so that another draw would be another route, then a router and its experts."""

    def __init__(self, experts: int, per_token: int) -> None:
        super().__init__()
        self.per_token = per_token
        self.router = nn.Linear(WIDTH, experts)
        self.gate_up = nn.Parameter(torch.empty(experts, 2 * INNER, WIDTH))
        self.down = nn.Parameter(torch.empty(experts, WIDTH, INNER))

    def forward(self, x: Tensor) -> Tensor:
        tokens = nn.functional.dropout(x, 0.3).flatten(0, 1)
        weight, index = self.router(tokens).softmax(-1).topk(self.per_token)
        made = EXPERTS(tokens, index, weight, self.gate_up, self.down, "silu")
        return x + made.view_as(x)


class Masked(nn.Module):
    """An expert for the tokens that a mask picks, in a checkpoint of the user's own or not."""

    def __init__(self, *, again: bool) -> None:
        super().__init__()
        self.expert, self.again = nn.Linear(WIDTH, WIDTH), again

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self._routed, x, use_reentrant=False) if self.again else self._routed(x)

    def _routed(self, x: Tensor) -> Tensor:
        mask = x[..., 0] > 0
        return x.masked_scatter(mask.unsqueeze(-1), self.expert(x[mask]))


class Stack(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def batch() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {"x": torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)}


@pytest.mark.parametrize("again", [False, True])
def test_routing_by_a_mask_is_refused_with_the_line(again: bool) -> None:
    model = Stack(Masked(again=again)).double()
    with pytest.raises(UnsupportedModelError, match=r"size.*\(at tests/cases/test_routing\.py:\d+"):
        capture(model, batch())


@pytest.mark.parametrize(("dp", "microbatches"), [(1, 1), (2, 2)])
def test_a_route_that_runs_again_is_the_same(dp: int, microbatches: int) -> None:
    model = initialise(Stack(*(Routed(4, 2) for _ in range(3))), torch.float64)
    graph = capture(model, batch()).at_batch(BATCH)
    truth = one_device(model, lambda: model(**batch()))
    everything = {
        block.path: Again(calls=frozenset(needed_of_block(graph, block)), inputs=frozenset())
        for block in graph.blocks
    }
    options = {"dp": dp, "num_microbatches": microbatches}
    kept = sharded(emit_choices(replicated(graph, 1, **options), "kept"), model, batch())
    emitted = emit_choices(replicated(graph, 1, again=everything, **options), "again")
    assert "again(torch.ops.autoplan.experts" in "".join(emitted.source.split())
    again = sharded(emitted, model, batch())
    assert_same(again, truth)
    assert all(torch.equal(again.gradients[name], g) for name, g in kept.gradients.items())


@settings(deadline=None, max_examples=4)
@given(experts=st.integers(2, 8), data=st.data())
def test_experts_keep_the_bytes_of_routed_tokens(experts: int, data) -> None:
    """Of a token that an expert gets: its input and result, the gate and the other projection, the
    activation and the product, and where it stands in three orders; of an expert, where it ends."""
    per_token = data.draw(st.integers(1, experts))
    model = initialise(Stack(Routed(experts, per_token)), torch.float64)
    graph = capture(model, batch()).at_batch(BATCH)
    (node,) = (n for n in graph.of_kind("call") if n.target == "autoplan.experts.default")
    own = sum(kept.nbytes for kept in node.saved if kept.source is None)
    routed = BATCH * LENGTH * per_token
    of_token = FLOAT_BYTES * (2 * WIDTH + 4 * INNER) + 3 * NUMBER_BYTES
    assert own == routed * of_token + experts * END_BYTES
