"""Repeated blocks of traced graphs: which modules they are, and that instances correspond."""

import pytest
import torch
from torch import nn

from autoplan.trace.capture import capture
from autoplan.trace.graph import Ref
from tests.unit import trace_models as models


class Summed(nn.Module):
    """The sum of a module's result as the loss."""

    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return self.body(x).sum()


class Pair(nn.Module):
    """Two linear layers."""

    def __init__(self, width=8, scale=1.0):
        super().__init__()
        self.up, self.down, self.scale = nn.Linear(8, width), nn.Linear(width, 8), scale

    def forward(self, x):
        return self.down(torch.relu(self.up(x))) * self.scale


def _paths(model):
    graph = capture(Summed(model), (torch.randn(4, 8),))
    return [[block.path for block in blocks] for blocks in graph.kinds.values()]


def test_layers_of_a_decoder_correspond():
    graph = capture(models.GPT(layers=3), models.tokens(2, 12, 61), loss_fn=models.token_loss)
    assert [block.path for block in graph.blocks] == [f"layers.{i}" for i in range(3)]
    assert {block.kind for block in graph.blocks} == {"layers.0"}
    first = graph.blocks[0]
    for index, block in enumerate(graph.blocks):
        prefix = f"layers.{index}"
        for name, name_first in zip(block.nodes, first.nodes, strict=True):
            node, node_first = graph.by_name[name], graph.by_name[name_first]
            assert name == prefix + name_first.removeprefix("layers.0")
            assert (node.target, node.outputs) == (node_first.target, node_first.outputs)
        assert block.parameters == tuple(
            prefix + name.removeprefix("layers.0") for name in first.parameters
        )
        assert block.inputs == ((Ref("/add") if index == 0 else Ref(f"layers.{index - 1}/add#1")),)
        assert block.outputs == (Ref(f"{prefix}/add#1"),)
    assert len(first.parameters) == 12


def test_blocks_hold_all_calls_of_their_module_and_never_overlap():
    graph = capture(models.gpt2(layers=4), {k: torch.zeros(2, 16, dtype=torch.long)
                                            for k in ("input_ids", "labels")})  # fmt: skip
    names = [name for block in graph.blocks for name in block.nodes]
    assert len(names) == len(set(names))
    for block in graph.blocks:
        inside = [n.name for n in graph.nodes if n.kind == "call"
                  and (n.module + ".").startswith(block.path + ".")]  # fmt: skip
        assert list(block.nodes) == inside
        assert [graph.block_of[name] for name in block.nodes] == [block] * len(block.nodes)


@pytest.mark.parametrize(
    ("model", "paths"),
    [
        (lambda: nn.Sequential(Pair(), Pair(), Pair(), Pair()), [["1", "2", "3"]]),
        (
            lambda: nn.Sequential(Pair(), Pair(), Pair(16), Pair(), Pair(16)),
            [["1", "3"], ["2", "4"]],
        ),
        (lambda: nn.Sequential(Pair(), Pair(), Pair(scale=2.0)), []),
        (lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)), []),
        (lambda: nn.Sequential(nn.Linear(8, 8), *[nn.Sequential(*[Pair() for _ in range(4)])
                                                  for _ in range(2)]),
         [[f"{tower}.{index}" for tower in (1, 2) for index in range(4)]]),
        (lambda: nn.Sequential(nn.Linear(8, 8), *[nn.Sequential(Pair(), Pair(16))
                                                  for _ in range(2)]), [["1", "2"]]),
    ],
)  # fmt: skip
def test_groups(model, paths):
    """The first pair reads the model's input, which needs no gradient: it is another block."""
    expected = [[f"body.{path}" for path in kind] for kind in paths]
    assert _paths(model()) == expected


def test_frozen_and_shared_layers_are_kinds_of_their_own():
    model = nn.Sequential(nn.Linear(8, 8), *[Pair() for _ in range(6)])
    for index in (3, 4):
        model[index].requires_grad_(False)
    assert _paths(model) == [["body.1", "body.2", "body.5", "body.6"], ["body.3", "body.4"]]
    model = nn.Sequential(nn.Linear(8, 8), *[Pair() for _ in range(6)])
    for index in (5, 6):
        model[index].up.weight = model[1].up.weight
    assert _paths(model) == [["body.1", "body.2", "body.3", "body.4"], ["body.5", "body.6"]]


class Again(nn.Module):
    """Calls modules several times, in the order of ``path``."""

    def __init__(self, path):
        super().__init__()
        self.path = path
        self.first, self.second = Pair(), Pair()
        self.project = nn.Linear(8, 8)

    def forward(self, x):
        x = self.project(x)
        for name in self.path:
            x = getattr(self, name)(x)
        return x


def test_every_call_of_a_module_is_a_block():
    model = Again(["first"] * 3)
    assert _paths(model) == [["body.first@0", "body.first@1", "body.first@2"]]
    graph = capture(Summed(model), (torch.randn(4, 8),))
    assert {block.parameters for block in graph.blocks} == {
        ("body.first.up.weight", "body.first.up.bias", "body.first.down.weight",
         "body.first.down.bias")
    }  # fmt: skip
    assert _paths(Again(["first", "second"] * 2)) == [
        ["body.first@0", "body.second@0", "body.first@1", "body.second@1"]
    ]


def test_calls_are_numbered_alike():
    """Whether layers are traced one by one or copied; they call a part of theirs twice."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.pair = Pair()

        def forward(self, x):
            return self.pair(self.pair(x))

    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(5))

        def forward(self, x):
            for layer in self.layers:
                x = layer(layer(x))
            return x.sum()

    folded = capture(Layers(), (torch.randn(4, 8),))
    assert folded == capture(Layers(), (torch.randn(4, 8),), fold=False)
    last = [node for node in folded.of_kind("call") if node.module == "layers.4.pair.down"]
    numbers = [[count for _, count in node.reruns] for node in last]
    assert numbers == [[], [1, 1], [1, 2, 2], [1, 3, 3]], "of the layer, the pair and the linear"
    assert len(folded.blocks) == 9, "all calls but the first, whose input needs no gradient"
