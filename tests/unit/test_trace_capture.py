"""Captured graphs, interpreted on real tensors, against the eager model on one device."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from autoplan.trace.capture import capture
from autoplan.trace.graph import BatchInt, Ref
from tests.unit import trace_models as models


def _loss_and_gradients(model, loss):
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [loss, *torch.autograd.grad(loss, parameters, allow_unused=True)]


def _equal(first, second):
    assert len(first) == len(second)
    for one, two in zip(first, second, strict=True):
        assert (one is None) == (two is None)
        assert one is None or torch.equal(one, two)


@pytest.mark.parametrize("batch", [2, 5])
@pytest.mark.parametrize("tied", [True, False])
def test_decoder_equals_eager(batch, tied):
    model = models.GPT(tied=tied)
    graph = capture(model, models.tokens(4, 12, 61), loss_fn=models.token_loss)
    ids, targets = models.tokens(batch, 12, 61)
    traced = models.run_graph(
        graph.at_batch(batch), models.state_of(model), {"ids": ids, "targets": targets}
    )
    eager = models.token_loss(model(ids), targets)
    _equal(_loss_and_gradients(model, traced), _loss_and_gradients(model, eager))


@pytest.mark.parametrize("build", [models.llama, models.gpt2])
def test_transformers_model_equals_eager(build):
    model = build()
    ids, labels = models.tokens(3, 16, 61)
    labels[0, :5] = -100
    graph = capture(model, {"input_ids": ids, "labels": labels})
    inputs = {"input_ids": ids, "labels": labels}
    traced = models.run_graph(graph.at_batch(3), models.state_of(model), inputs)
    eager = model(**inputs, use_cache=False).loss
    _equal(_loss_and_gradients(model, traced), _loss_and_gradients(model, eager))


class Regions(nn.Module):
    """no_grad, disabled autocast, a lifted constant, a buffer, chunks and an unused parameter."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("scale", torch.full((6,), 0.5))

    def forward(self, x, y):
        with torch.no_grad():
            offset = self.linear(x).mean(-1, keepdim=True)
            with torch.enable_grad():
                offset = offset + self.linear(x).sum(-1, keepdim=True)
        with torch.autocast("cpu", enabled=False):
            left, right = (self.linear(x) * self.scale + torch.tensor([2.0])).chunk(2, -1)
        return ((left * right - offset).sum(-1) - y).pow(2).mean()


def test_regions_constants_and_tuples_equal_eager():
    model = Regions()
    x, y = torch.randn(4, 6), torch.randn(4)
    graph = capture(model, (x, y))
    traced = models.run_graph(graph.at_batch(4), models.state_of(model), {"x": x, "y": y})
    _equal(_loss_and_gradients(model, traced), _loss_and_gradients(model, model(x, y)))
    (constant,) = graph.of_kind("constant")
    assert constant.args == ((2.0,),)
    assert "unused" in graph.by_name


def test_names_follow_modules():
    graph = capture(models.GPT(), models.tokens(2, 12, 61), loss_fn=models.token_loss)
    kinds = [node.kind for node in graph.nodes]
    assert kinds == sorted(kinds, key=["input", "parameter", "buffer", "constant", "call"].index)
    assert [node.name for node in graph.of_kind("input")] == ["ids", "targets"]
    assert "layers.1.up/linear" in graph.by_name
    assert graph.by_name["layers.1/add#1"].module == "layers.1"
    assert len(graph.by_name) == len(graph.nodes)
    assert graph.tied == (("tokens.weight", "head.weight"),)
    assert "head.weight" not in graph.by_name


def test_sizes_that_follow_the_batch_are_marked():
    graph = capture(models.GPT(), models.tokens(7, 12, 61), loss_fn=models.token_loss)
    qkv = graph.by_name["layers.0.qkv/linear"].outputs[0]
    assert (qkv.shape, qkv.batch_dims) == ((2, 12, 48), (0,))
    assert graph.by_name["layers.0/view"].args[1] == (BatchInt(1), 12, 3, 2, 8)
    assert graph.by_name["/flatten"].outputs[0].batch_dims == (0,)
    assert graph.at_batch(10).by_name["/flatten"].outputs[0].shape == (120, 61)
    positions = graph.by_name["positions/embedding"].outputs[0]
    assert (positions.shape, positions.batch_dims) == ((12, 16), ())


def test_batch_on_another_dim():
    class TimeMajor(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x, mask):
            return (self.linear(x) * mask[:, None, None]).sum()

    graph = capture(
        TimeMajor(), (torch.randn(5, 3, 4), torch.ones(5)), batch_dims={"x": 1, "mask": None}
    )
    assert graph.by_name["x"].outputs[0].batch_dims == (1,)
    assert graph.by_name["mask"].outputs[0].batch_dims == ()
    assert graph.by_name["linear/linear"].outputs[0].batch_dims == (1,)


def test_source_lines_are_the_users():
    graph = capture(models.GPT(), models.tokens(2, 12, 61), loss_fn=models.token_loss)
    file, line = graph.by_name["layers.0.up/linear"].where.split(":")
    assert file == "tests/unit/trace_models.py"
    text = Path(models.__file__).read_text().splitlines()[int(line) - 1]
    assert "self.up(" in text


def test_dict_inputs_loss_modules_and_targets():
    model, (ids, targets) = models.GPT(), models.tokens(2, 12, 61)

    class Loss(nn.CrossEntropyLoss):
        def forward(self, logits, targets):
            return super().forward(logits.flatten(0, 1), targets.flatten())

    for key in ("targets", "labels"):
        graph = capture(model, {key: targets, "ids": ids}, loss_fn=Loss(ignore_index=3))
        traced = models.run_graph(graph, models.state_of(model), {"ids": ids, key: targets})
        assert torch.equal(traced, Loss(ignore_index=3)(model(ids), targets))


def test_plain_arguments_pass_through():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x, scale, bias=None, *, twice=False):
            y = self.linear(x) * scale
            return (y + y if twice else y).sum()

    graph = capture(Scaled(), (torch.ones(2, 4), 3.0, None))
    assert [node.name for node in graph.of_kind("input")] == ["x"]
    assert "/add" in capture(Scaled(), {"x": torch.ones(2, 4), "scale": 3.0, "twice": True}).by_name


def test_dtype_casts_parameters_and_floating_inputs_only():
    model = Regions()
    graph = capture(model, (torch.randn(4, 6), torch.randn(4)), dtype=torch.bfloat16)
    assert graph.by_name["linear.weight"].outputs[0].dtype == "bfloat16"
    assert graph.by_name["x"].outputs[0].dtype == "bfloat16"
    assert graph.by_name["scale"].outputs[0].dtype == "float32"
    assert model.linear.weight.dtype == torch.float32


def test_fingerprint_depends_on_structure_not_on_precision_or_batch():
    ids = {"input_ids": torch.zeros(2, 16, dtype=torch.long)}
    ids["labels"] = ids["input_ids"]
    fp32 = capture(models.llama(), ids)
    bf16 = capture(models.llama(), {k: v[:1].repeat(5, 1) for k, v in ids.items()},
                   dtype=torch.bfloat16)  # fmt: skip
    assert fp32.fingerprint == bf16.fingerprint
    longer = {key: torch.zeros(2, 20, dtype=torch.long) for key in ids}
    others = [capture(models.llama(layers=3), ids), capture(models.llama(), longer)]
    assert len({fp32.fingerprint, *(graph.fingerprint for graph in others)}) == 3


def test_meta_and_real_models_give_the_same_graph():
    example = models.tokens(2, 12, 61)
    real = capture(models.GPT(), example, loss_fn=models.token_loss)
    with torch.device("meta"):
        model, meta_example = models.GPT(), models.tokens(2, 12, 61)
    assert capture(model, meta_example, loss_fn=models.token_loss) == real


def test_the_model_and_torch_are_left_as_they_were():
    model = models.llama(layers=5)
    model.config.use_cache = True
    before = {name: (id(t), t.clone()) for name, t in models.state_of(model).items()}
    attributes = {name: dict(part.__dict__) for name, part in model.named_modules()}
    hooks = nn.Module.__getattr__, torch.autograd.Function.apply
    random_state = torch.random.get_rng_state()
    ids, labels = models.tokens(2, 16, 61)
    expected = copy.deepcopy(model)(input_ids=ids, labels=labels).loss
    torch.random.set_rng_state(random_state)
    capture(model, {"input_ids": ids, "labels": labels})
    assert torch.equal(torch.random.get_rng_state(), random_state)
    assert (nn.Module.__getattr__, torch.autograd.Function.apply) == hooks
    assert model.config.use_cache
    for name, tensor in models.state_of(model).items():
        assert not isinstance(tensor, FakeTensor)
        assert id(tensor) == before[name][0]
        assert torch.equal(tensor, before[name][1])
    assert {name: dict(part.__dict__) for name, part in model.named_modules()} == attributes
    assert torch.equal(model(input_ids=ids, labels=labels).loss, expected)


def test_dropout_stays_in_train_mode_only():
    model, example = models.GPT(dropout=0.1), models.tokens(2, 12, 61)
    graph = capture(model, example, loss_fn=models.token_loss)
    dropout = graph.by_name["layers.0.dropout/dropout"]
    assert (dropout.target, dropout.args[1:]) == ("aten.dropout.default", (0.1, True))
    graph = capture(model.eval(), example, loss_fn=models.token_loss)
    assert not [node for node in graph.nodes if "dropout" in node.target]


def test_frozen_parameters_need_no_gradients():
    model = models.GPT(tied=False)
    model.tokens.weight.requires_grad_(False)
    model.layers[0].qkv.requires_grad_(False)
    graph = capture(model, models.tokens(2, 12, 61), loss_fn=models.token_loss)
    assert not graph.by_name["layers.0.qkv.weight"].outputs[0].requires_grad
    assert graph.by_name["layers.0.qkv/linear"].outputs[0].requires_grad
    qkv = graph.by_name["layers.0.qkv/linear"]
    assert qkv.backward_flops == qkv.flops


@pytest.mark.parametrize("stop", [torch.Tensor.detach, torch.Tensor.detach_])
def test_gradients_stop_where_the_model_stops_them(stop):
    class Stopped(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.second(stop(self.first(x) + torch.tensor(1.0))).square().sum()

    graph = capture(Stopped(), (torch.randn(2, 4),))
    read = graph.by_name["second/linear"].operands[0]
    assert not graph.meta(read).requires_grad
    assert graph.meta(Ref("first/linear")).requires_grad
