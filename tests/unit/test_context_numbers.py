"""The graph of a ``cp`` rank, run on real tensors by all of them, against the model's graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autoplan.sharding.context import context_graph
from autoplan.sharding.exchange import EXCHANGE, exchange_of
from autoplan.trace.capture import capture
from tests.unit.token_ranks import loss_of_ranks
from tests.unit.trace_models import (
    GPT,
    Block,
    llama,
    run_graph,
    state_of,
    summed_token_loss,
    token_loss,
)

CLOSE = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-12},
    torch.float32: {"rtol": 1e-5, "atol": 1e-7},
}
"""By the loss: transformers takes it in float32."""
WIDTH, VOCAB, LENGTH, BATCH = 16, 61, 12, 2


class Patches(nn.Module):
    """Images cut into tokens, blocks, and a mean over all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.positions = nn.Parameter(torch.randn(1, 8, WIDTH))
        self.layers = nn.ModuleList(Block(WIDTH, 2, 0.0) for _ in range(3))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.cut(images).flatten(2).transpose(1, 2) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class Positions(nn.Module):
    """A weight for every position, added as it is; norms that scale by one more than a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.scales = nn.ParameterList(torch.randn(WIDTH) for _ in range(2))
        self.layers = nn.ModuleList(Block(WIDTH, 2, 0.0) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.positions
        for scale, layer in zip(self.scales, self.layers, strict=True):
            x = layer(x * (1.0 + scale))
        return x


def ids(length: int = LENGTH) -> Tensor:
    return torch.randint(0, VOCAB, (BATCH, length))


def labelled(model: nn.Module, length: int = LENGTH) -> tuple[nn.Module, Any, None]:
    return model, {"input_ids": ids(length), "labels": ids(length)}, None


def gpt() -> tuple[nn.Module, Any, Any]:
    return GPT(), (ids(), ids()), token_loss


def gpt_summed() -> tuple[nn.Module, Any, Any]:
    return GPT(tied=False), (ids(), ids()), summed_token_loss


def grouped_queries() -> tuple[nn.Module, Any, Any]:
    return labelled(llama())


def with_padding() -> tuple[nn.Module, Any, Any]:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model, inputs, _ = labelled(BertForMaskedLM(config))
    seen = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    seen[0, 7:] = 0
    return model, inputs | {"attention_mask": seen}, None


def two_sequences() -> tuple[nn.Module, Any, Any]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0
    )
    model = T5ForConditionalGeneration(config)
    return model, {"input_ids": ids(8), "decoder_input_ids": ids(), "labels": ids()}, None


def images() -> tuple[nn.Module, Any, Any]:
    labels = torch.randint(0, 5, (BATCH,))
    return Patches(), (torch.randn(BATCH, 3, 8, 16), labels), nn.functional.cross_entropy


def positions() -> tuple[nn.Module, Any, Any]:
    given = torch.randn(BATCH, LENGTH, WIDTH), torch.randn(BATCH, LENGTH, WIDTH)
    return Positions(), given, nn.functional.mse_loss


@pytest.mark.parametrize(
    ("case", "cp"),
    [
        (gpt, 2), (gpt_summed, 3), (grouped_queries, 4), (with_padding, 3), (two_sequences, 2),
        (images, 2), (positions, 3),
    ],
)  # fmt: skip
def test_ranks_together_make_the_models_loss_and_gradients(case: Any, cp: int) -> None:
    torch.manual_seed(0)
    model, inputs, loss_fn = case()
    model = model.train().double()
    given = list(inputs.values() if isinstance(inputs, dict) else inputs)
    given = [each.double() if each.is_floating_point() else each for each in given]
    inputs = dict(zip(inputs, given, strict=True)) if isinstance(inputs, dict) else tuple(given)
    graph = capture(model, inputs, loss_fn=loss_fn).at_batch(BATCH)
    names = [node.target for node in graph.of_kind("input")]
    by_name = inputs if isinstance(inputs, dict) else dict(zip(names, given, strict=True))
    wanted, found = learning(model), learning(model)
    truth, loss = run_graph(graph, wanted, by_name), loss_of_ranks(graph, cp, found, by_name)
    torch.testing.assert_close(loss, truth, **CLOSE[truth.dtype])
    truth.backward()
    loss.backward()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name].grad, tensor.grad, **CLOSE[truth.dtype])


def test_only_the_weights_gradients_are_summed_of_what_weights_alone_make() -> None:
    model, (x, y), loss_fn = positions()
    part = context_graph(capture(model, (x, y), loss_fn=loss_fn), 2)
    sent = [exchange_of(node) for node in part.of_kind("call") if node.target == EXCHANGE]
    assert not [each for each in sent if each.backward == "all_reduce"]
    cut = [each.backward for each in sent if each.forward == "slice"]
    assert cut.count("all_gather") == 1


def learning(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters and buffers, the same one for tied names."""
    copies: dict[int, Tensor] = {}
    for tensor in state_of(model).values():
        copy = tensor.detach().clone()
        copies.setdefault(id(tensor), copy.requires_grad_(copy.is_floating_point()))
    return {name: copies[id(tensor)] for name, tensor in state_of(model).items()}
