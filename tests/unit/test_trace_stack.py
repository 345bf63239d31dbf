"""A model as a row of items: decoders, encoders with decoders, and models without blocks."""

from functools import cache

import pytest
import torch
from torch import nn

from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph, Ref
from autoplan.trace.stack import Stack, stack_of
from tests.unit import trace_models as models

LAYERS = 3


@cache
def gpt2() -> OpGraph:
    ids = torch.zeros(2, 16, dtype=torch.long)
    return capture(models.gpt2(layers=LAYERS), {"input_ids": ids, "labels": ids})


class Layer(nn.Module):
    """A block that may also read what an encoder made, scaled by a mask."""

    def __init__(self, width: int):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x, mask, encoded=None):
        read = x if encoded is None else x * encoded
        return x + self.down(torch.relu(self.up(read))) * mask


class EncoderDecoder(nn.Module):
    """Blocks on both sides; those of the decoder read the encoder's normed result."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.tokens = nn.Embedding(11, width)
        self.encoder = nn.ModuleList(Layer(width) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(width)
        self.decoder = nn.ModuleList(Layer(width) for _ in range(LAYERS))
        self.head = nn.Linear(width, 11, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, source, target):
        mask = (source != 0).unsqueeze(-1)
        x, y = self.tokens(source), self.tokens(target)
        for layer in self.encoder:
            x = layer(x, mask)
        x = self.norm(x)
        for layer in self.decoder:
            y = layer(y, mask, x)
        return self.head(y)


@cache
def encoder_decoder() -> OpGraph:
    ids = torch.zeros(2, 6, dtype=torch.long)
    return capture(EncoderDecoder(), (ids, ids, ids), loss_fn=models.token_loss)


@cache
def without_blocks() -> OpGraph:
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    example = torch.randn(2, 8), torch.randn(2, 4)
    return capture(net, example, loss_fn=nn.functional.mse_loss)


GRAPHS = [gpt2, encoder_decoder, without_blocks]


@pytest.mark.parametrize("make", GRAPHS)
def test_every_call_is_in_one_item_or_shared_in_order(make) -> None:
    graph = make()
    stack = stack_of(graph)
    names = [*stack.shared, *(name for item in stack.items for name in item.calls)]
    assert len(names) == len(set(names))
    assert set(names) == {node.name for node in graph.of_kind("call")}
    place = {node.name: number for number, node in enumerate(graph.nodes)}
    for item in stack.items:
        assert list(item.calls) == sorted(item.calls, key=lambda name: place[name])
        blocks = {graph.block_of[name].path for name in item.calls if name in graph.block_of}
        assert {item.name} == (blocks if item.kind else {item.calls[0]})


@pytest.mark.parametrize("make", GRAPHS)
def test_nothing_is_read_before_it_is_made(make) -> None:
    graph = make()
    stack = stack_of(graph)
    for name, number in stack.position.items():
        for ref in graph.by_name[name].operands:
            assert stack.position.get(ref.node, -1) <= number


@pytest.mark.parametrize("make", GRAPHS)
def test_what_is_shared_follows_from_inputs_alone_and_never_learns(make) -> None:
    graph = make()
    shared = set(stack_of(graph).shared)
    given = {node.name for node in graph.nodes if node.kind in ("input", "buffer", "constant")}
    for name in shared:
        node = graph.by_name[name]
        assert not any(meta.requires_grad for meta in node.outputs)
        assert {ref.node for ref in node.operands} <= given | shared


@pytest.mark.parametrize("make", GRAPHS)
def test_crossings_are_what_is_read_behind_the_cut(make) -> None:
    graph = make()
    stack = stack_of(graph)
    assert len(stack.crossings) == len(stack.items) - 1
    for cut, crossing in enumerate(stack.crossings):
        needed = {
            ref
            for item in stack.items[cut + 1 :]
            for name in item.calls
            for ref in graph.by_name[name].operands
            if stack.position.get(ref.node, cut + 1) <= cut
        }
        assert set(crossing) == needed
        assert len(crossing) == len(needed)


def kinds(stack: Stack) -> list[str]:
    return [item.kind and item.name for item in stack.items]


def test_a_decoder_has_a_head_its_blocks_and_a_tail() -> None:
    stack = stack_of(gpt2())
    assert kinds(stack) == ["", *(f"transformer.h.{i}" for i in range(LAYERS)), ""]
    assert all(len(crossing) == 1 for crossing in stack.crossings)
    assert stack.items[-1].name == "transformer.ln_f/layer_norm"
    (embedding,) = set(stack.parameters[0]) & set(stack.parameters[-1])
    assert embedding == "transformer.wte.weight"
    assert stack.parameters[1] == tuple(
        name for name in gpt2().blocks[0].parameters if gpt2().by_name[name].kind == "parameter"
    )


def test_what_the_encoder_made_crosses_the_whole_decoder() -> None:
    graph = encoder_decoder()
    stack = stack_of(graph)
    names = [item.name for item in stack.items]
    first, last = names.index("decoder.0"), names.index(f"decoder.{LAYERS - 1}")
    (encoded,) = set.intersection(*(set(stack.crossings[cut]) for cut in range(first, last)))
    assert encoded.node == "norm/layer_norm"
    made = stack.position[encoded.node]
    carried = [encoded in crossing for crossing in stack.crossings]
    assert carried == [made <= cut < last for cut in range(len(stack.crossings))]
    assert any("unsqueeze" in name for name in stack.shared)


def test_a_model_without_blocks_is_one_item() -> None:
    stack = stack_of(without_blocks())
    assert [item.kind for item in stack.items] == [""]
    assert stack.crossings == ()
    assert len(stack.parameters[0]) == 4
    assert Ref(stack.items[0].calls[-1]) == without_blocks().output
