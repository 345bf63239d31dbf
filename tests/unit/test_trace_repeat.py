"""Blocks traced once and copied, against the trace of the whole model."""

import random
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autoplan.errors import UnsupportedModelError
from autoplan.trace import repeat_ops
from autoplan.trace.batch_sizes import traced_batches
from autoplan.trace.capture import assemble, capture
from autoplan.trace.inputs import read_inputs
from autoplan.trace.kernels import gpu_call
from autoplan.trace.program import export_loss
from autoplan.trace.refusals import refuse_at_once
from autoplan.trace.repeat_memo import BlockMemo
from autoplan.trace.traces import Subject, folded
from tests.unit import trace_models as models

GLOBAL = torch.tensor([0.5])


def approximation(index):
    return "tanh" if index < 3 else "none"


class Layer(nn.Module):
    """A residual block whose ``mode`` makes equal looking instances behave differently."""

    def __init__(self, index, mode, chain):
        super().__init__()
        self.index, self.mode, self.chain = index, mode, [chain]
        self.up, self.down, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)
        self.dropout = nn.Dropout(0.1)
        self.activation = partial(
            F.gelu, approximate="tanh" if mode != "partial" else approximation(index)
        )

    def forward(self, x, extra=None):
        h = self.dropout(self.down(self.activation(self.up(self.norm(x)))))
        if self.mode == "control" and self.index % 3 == 0:
            h = torch.tanh(h)
        if self.mode == "own dict":
            h = h / (vars(self)["index"] + 1 if "index" in self.__dict__ else 7)
        if self.mode == "own get":
            h = h * vars(self).get("index", 7)
        if self.mode == "scale":
            h = h / (self.index + 1)
        if self.mode == "collects":
            self.chain[0].collected.append(h.mean(-1))
        if self.mode == "writes":
            self.last = h
        if self.mode == "mutates":
            extra["last"] = h
        if self.mode == "captures":
            h = h + self.chain[0].first
        if self.mode == "constant":
            h = h * torch.tensor([2.0])
        if self.mode in ("constants", "repeats constants"):
            first, second = torch.tensor([2.0]), torch.tensor(3.0)
            h = h[..., [7, 6, 5, 4, 3, 2, 1, 0]] * second + first
        if self.mode == "global constant":
            h = h * GLOBAL + torch.tensor([1.0])
        if self.mode == "constant of layer":
            h = h * torch.tensor(float(self.index))
        if self.mode == "constant of chain":
            self.chain[0].position += 1
            h = h * torch.tensor(float(self.chain[0].position))
        if self.mode == "tensor":
            h = h * extra
        if self.mode == "flag" and extra:
            h = torch.relu(h)
        if self.mode == "no_grad":
            with torch.no_grad():
                shift = h.mean(-1, keepdim=True)
            h = h - shift
        if self.mode == "batch mean":
            h = h - h.mean(0)
        if self.mode == "two results":
            return x + h, h
        if self.mode == "detaches":
            return x + h, h.detach()
        if self.mode == "gives a view back":
            return x.view(x.shape), h
        return x + h


class Chain(nn.Module):
    """Six layers, an odd one out by ``mode``."""

    def __init__(self, mode):
        super().__init__()
        self.mode = mode
        self.layers = nn.ModuleList(Layer(index, mode, self) for index in range(6))
        if mode == "tied":
            for layer in self.layers[4:]:
                layer.up.weight = self.layers[0].up.weight
        if mode == "dropout":
            for index, layer in enumerate(self.layers):
                layer.dropout.p = 0.1 if index < 3 else 0.2
        if mode == "hook":
            self.layers[4].register_forward_hook(lambda module, args, result: result * 3)
        if mode == "eval":
            self.layers[5].eval()
        if mode == "frozen":
            self.layers[2].requires_grad_(False)

    def forward(self, x):
        self.collected, self.first, state = [], x * 2, {"last": x}
        self.position = 0
        for index, layer in enumerate(self.layers):
            if self.mode == "tensor":
                x = layer(x, torch.ones(8))
            elif self.mode == "flag":
                x = layer(x, index > 2)
            elif self.mode == "mutates":
                x = layer(x, state)
            elif self.mode in ("two results", "detaches"):
                x, last = layer(x)
            elif self.mode == "outer residual":
                x = x + layer(x)
            elif self.mode == "written over":
                given, x = x, layer(x)
                x += given
            elif self.mode == "gives a view back":
                first, last = layer(x)
                first += last
            else:
                x = layer(x)
        if self.mode == "collects":
            x = x + sum(self.collected)[..., None]
        if self.mode == "mutates":
            x = x + state["last"]
        if self.mode in ("two results", "detaches"):
            x = x + last
        if self.mode.startswith("repeats"):
            x = self.layers[0](self.layers[1](x))
        return x.pow(2).mean()


MODES = [
    "plain", "tied", "dropout", "hook", "eval", "frozen", "control", "scale", "collects", "writes",
    "mutates", "captures", "constant", "tensor", "flag", "no_grad", "repeats", "two results",
    "detaches", "outer residual", "batch mean", "partial", "own dict", "own get", "constants",
    "repeats constants", "global constant", "constant of layer", "constant of chain",
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_look_alikes_give_the_whole_trace(mode):
    model, example = Chain(mode), (torch.randn(4, 3, 8),)
    assert capture(model, example) == capture(model, example, fold=False)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("build", [models.llama, models.gpt2])
def test_transformers_models_give_the_whole_trace(build, dtype):
    ids, labels = models.tokens(2, 16, 61)
    model, example = build(layers=6), {"input_ids": ids, "labels": labels}
    folded = capture(model, example, dtype=dtype)
    assert folded == capture(model, example, dtype=dtype, fold=False)
    assert [len(blocks) for blocks in folded.kinds.values()] == [6]


class SharingBlock(nn.Module):
    def __init__(self, shared: nn.Linear):
        super().__init__()
        self.shared, self.own = shared, nn.Linear(8, 8)

    def forward(self, x):
        return x + self.own(self.shared(x).relu())


def test_blocks_that_share_a_part_give_the_whole_trace():
    shared = nn.Linear(8, 8)
    model = nn.Sequential(nn.Linear(8, 8), *(SharingBlock(shared) for _ in range(5)))
    example, loss_fn = (torch.randn(4, 8), torch.randn(4, 8)), nn.functional.mse_loss
    folded = capture(model, example, loss_fn=loss_fn)
    assert folded == capture(model, example, loss_fn=loss_fn, fold=False)
    assert [block.path for block in folded.blocks] == ["2", "3", "4", "5"]


def _subject(model, example):
    inputs = read_inputs(model, example, with_targets=False, batch_dims=None)
    return Subject(
        model,
        inputs,
        None,
        None,
        unfuses_attention=False,
        batch_norm="sync",
        autocast_on=None,
        refuse=refuse_at_once,
    )


@pytest.mark.parametrize(
    ("mode", "in_full", "traced", "stubs"),
    [("plain", (), 3, 3), ("scale", ("model.layers.0",), 6, 0)],
)
def test_equal_blocks_are_traced_twice(mode, in_full, traced, stubs):
    """The first, whose input needs no gradient, the second, and the witness; with an attribute
    that is read, as many as it has values."""
    subject = _subject(Chain(mode), (torch.randn(4, 3, 8),))
    program = subject.program()
    memo = BlockMemo(program, (), in_full)
    with memo.active():
        graph = export_loss(program, subject.tensors(2)).graph
    assert len(memo.traced) == traced
    assert sum(node.target is repeat_ops.BLOCK for node in graph.nodes) == stubs


FOLDED = [
    "plain", "no_grad", "two results", "batch mean", "tensor", "constant", "constants",
    "repeats constants", "global constant", "written over",
]  # fmt: skip


@pytest.mark.parametrize("mode", FOLDED)
def test_folding_itself_succeeds(mode):
    """Without the fallback to the whole trace."""
    model, example = Chain(mode), (torch.randn(4, 3, 8),)
    batches = traced_batches(None)
    made = partial(assemble, batches=batches, call=gpu_call, refuse=refuse_at_once)
    graph, _ = folded(_subject(model, example), batches, made)
    assert graph == capture(model, example, fold=False)


def test_what_a_block_gives_back_is_not_written_over_behind_it():
    """A stand-in's result looks like memory of its own; the block's is its argument's."""
    with pytest.raises(UnsupportedModelError, match=r"add_.* is not supported"):
        capture(Chain("gives a view back"), (torch.randn(4, 3, 8),))


def test_stand_ins_have_constants_of_their_own():
    graph = capture(Chain("constants"), (torch.randn(4, 3, 8),))
    constants = [node.args for node in graph.of_kind("constant")]
    assert constants == [((2.0,),), (3.0,), (tuple(range(7, -1, -1)),)] * 6


class Watched(nn.Module):
    """Layers that all get gradients; ``mode`` says who reads their parameters besides."""

    def __init__(self, mode):
        super().__init__()
        self.mode, self.first = mode, nn.Linear(8, 8)
        self.layers = nn.ModuleList(Layer(index, "plain", self) for index in range(6))
        self.held = {"up": [self.layers[2].up]} if mode == "a part held" else {}

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x.detach()) if self.mode == "detached" else layer(x)
        if self.mode == "one parameter":
            x = x + self.layers[2].up.weight.sum()
        if self.mode == "all parameters":
            x = x + sum(parameter.sum() for parameter in self.parameters())
        if self.mode == "by name":
            x = x + dict(self.layers[3].named_parameters())["up.weight"].sum()
        if self.mode == "a part":
            x = self.layers[2].down(self.layers[2].up(x))
        if self.mode == "a part held":
            x = self.layers[2].down(self.held["up"][0](x))
        if self.mode == "a part's rate":
            x = x * self.layers[3].dropout.p
        if self.mode == "how many parts":
            x = x * len(list(self.modules()))
        if self.mode == "another part":
            self.layers[3].dropout = nn.Identity()
            x = self.layers[3](x)
        if self.mode == "caught":
            try:
                x = x + self.layers[2].up.weight.sum()
            except Exception:
                x = x * 2
        if self.mode == "state":
            x = x + self.layers[4].state_dict(keep_vars=True)["norm.weight"]
        return x.pow(2).mean()


WATCHERS = [
    "nobody", "detached", "one parameter", "all parameters", "by name", "a part", "a part held",
    "a part's rate", "how many parts", "another part", "caught", "state",
]  # fmt: skip


@pytest.mark.parametrize("mode", WATCHERS)
def test_parameters_that_others_read_are_in_the_graph(mode):
    model, example = Watched(mode), (torch.randn(4, 3, 8),)
    assert capture(model, example) == capture(model, example, fold=False)


class ReturnsParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x):
        return x + self.linear(self.norm(x)), self.norm.weight


def test_parameters_that_blocks_return_are_in_the_graph():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(8, 8)
            self.layers = nn.ModuleList(ReturnsParameter() for _ in range(6))

        def forward(self, x):
            x = self.first(x)
            for layer in self.layers:
                x, weight = layer(x)
                x = x * weight
            return x.sum()

    example = (torch.randn(4, 8),)
    assert capture(Model(), example) == capture(Model(), example, fold=False)


def test_export_sees_the_inside_of_the_first_two_and_the_last_block():
    subject = _subject(Watched("nobody"), (torch.randn(4, 3, 8),))
    program = subject.program()
    memo = BlockMemo(program, (), ())
    with memo.active():
        exported = export_loss(program, subject.tensors(2))
        parts = [len(list(layer.children())) for layer in program.model.layers]
    assert len(memo.traced) == 2
    assert parts == [4, 4, 0, 0, 0, 4]
    assert len(exported.graph_signature.parameters) == 2 + 3 * 6
    memo.withheld.put_back(exported)
    names = [name for name, _ in program.named_parameters()]
    assert list(exported.graph_signature.parameters) == names
    placeholders = [node.name for node in exported.graph.nodes if node.op == "placeholder"]
    assert placeholders == [spec.arg.name for spec in exported.graph_signature.input_specs]


def test_random_python_is_refused_either_way():
    class Random(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Layer(i, "plain", self) for i in range(5))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x) if random.random() < 2 else x
            return x.sum()

    for fold in (True, False):
        with pytest.raises(ValueError, match="Python's random"):
            capture(Random(), (torch.randn(4, 3, 8),), fold=fold)


@pytest.mark.slow
def test_llama_8b_in_full_gives_the_whole_trace():
    from autoplan import zoo

    subject = zoo.build("llama3-8b")
    folded = capture(subject.model, subject.example_inputs, dtype=torch.bfloat16)
    whole = capture(subject.model, subject.example_inputs, dtype=torch.bfloat16, fold=False)
    assert folded == whole
    assert [len(blocks) for blocks in folded.kinds.values()] == [32]
