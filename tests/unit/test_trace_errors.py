"""What cannot be traced faithfully is refused in one line that names it, its place and the cure."""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autoplan.errors import UnsupportedModelError
from autoplan.trace.capture import capture
from tests.unit import trace_models as models


class Model(nn.Module):
    """A linear layer around a function under test."""

    def __init__(self, function, **parts):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x):
        return self.function(self, self.linear(x)).sum()


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def _branch(model, y):
    if y.sum() > 0:
        return y * 2
    return y


def _one_more(model, y):
    return torch.cat([y, y[:1]])


def _batch_norm(model, y):
    norm = model.norm
    return nn.functional.batch_norm(y, norm.running_mean, norm.running_var, training=True)


def _autocast(model, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model.linear(y)


def _clears_a_part(model, y):
    y[:, 0] = 0
    return y


def _packs(model, y):
    lengths = torch.ones(len(y), dtype=torch.long)
    return nn.utils.rnn.pack_padded_sequence(y, lengths, batch_first=True).data


def _fails(model, y):
    return y @ torch.ones(3, 3)


def _batch_branch(model, y):
    return torch.tanh(y) if y.shape[0] > 2 else torch.relu(y)


CASES = {
    "branches on the value of a tensor": _branch,
    "Straight is a custom torch.autograd.Function": lambda m, y: Straight.apply(y),
    "draws from Python's random": lambda m, y: y * random.random(),
    "in-place operator aten.lgamma_.default": lambda m, y: y.lgamma_(),
    "torch.where or torch.cat": _clears_a_part,
    "mask or gather its outputs by the lengths": _packs,
    "running statistics": _batch_norm,
    "no multiple of the batch": _one_more,
    "the number of results, or of their dims, varies": lambda m, y: sum(y.unbind(0)),
    "torch.autocast('cpu') inside the model": _autocast,
    "the graph differs at batch 2 and 3": _batch_branch,
    "becomes 3.5 at another batch": lambda m, y: y * (y.shape[0] + 0.5),
    "plain numbers that differ at batch 2 and 3": lambda m, y: y / torch.tensor(float(len(y))),
    "depends on the data": lambda m, y: y[y > 0],
    "tracing failed": _fails,
    "register it as a buffer": lambda m, y: y * torch.tensor([1.0] * 5000).sum(),
}


@pytest.mark.parametrize("message", CASES)
def test_refused_by_name_in_one_line(message):
    parts = {"norm": nn.BatchNorm1d(4)} if "running" in message else {}
    state = random.getstate()
    with pytest.raises(UnsupportedModelError) as caught:
        capture(Model(CASES[message], **parts), (torch.randn(4, 4),))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert random.getstate() == state


TRAINED = torch.ones(4, requires_grad=True)


@pytest.mark.parametrize(
    ("at", "read"),
    [
        ("linear.weight", lambda weight: lambda m, y: y + weight.sum()),
        ("linear.bias", lambda bias: lambda m, y: y * bias),
        ("a tensor that is trained", lambda _: lambda m, y: y * TRAINED),
    ],
)
def test_what_is_trained_is_never_taken_for_a_constant(at, read):
    """A closure keeps the given model's own parameter, whose gradient the program would lose."""
    model = Model(None)
    model.function = read(model.get_parameter(at) if "." in at else None)
    with pytest.raises(UnsupportedModelError, match=f"reads {at} otherwise than from its module"):
        capture(model, (torch.randn(4, 4),))


def test_constants_that_are_not_trained_are_read():
    constant = torch.tensor([2.0])
    graph = capture(Model(lambda m, y: y * constant), (torch.randn(4, 4),))
    assert [node.kind for node in graph.nodes if node.kind == "constant"] == ["constant"]


@pytest.mark.parametrize("function", [_branch, _fails, _one_more])
def test_the_users_source_line_is_named_alone(function, capsys):
    with pytest.raises(UnsupportedModelError, match=r"tests/unit/test_trace_errors\.py:\d+"):
        capture(Model(function), (torch.randn(4, 4),))
    assert "torch.ops.aten" not in capsys.readouterr().err


@pytest.mark.parametrize("tracks", [True, False])
def test_modules_of_batch_norm_are_traced(tracks):
    norm = nn.BatchNorm1d(4, track_running_stats=tracks)
    graph = capture(Model(lambda model, y: model.norm(y), norm=norm), (torch.randn(4, 4),))
    assert "norm/batch_norm" in graph.by_name


class Returns(nn.Module):
    def __init__(self, result):
        super().__init__()
        self.linear, self.result = nn.Linear(4, 4), result

    def forward(self, x):
        return self.result(self.linear(x))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda y: y, r"float32 tensor of shape \(2, 4\) where the loss"),
        (lambda y: {"logits": y}, "returned dict without a loss"),
        (lambda y: y.argmax(), "int64 tensor"),
        (lambda y: {"loss": None}, "without a loss"),
    ],
)
def test_outputs_without_a_scalar_loss(result, message):
    with pytest.raises(UnsupportedModelError, match=message):
        capture(Returns(result), (torch.randn(4, 4),))


@pytest.mark.parametrize("result", [lambda y: y.sum(), lambda y: {"loss": y.sum(), "logits": y}])
def test_scalar_and_dict_losses_are_found(result):
    graph = capture(Returns(result), (torch.randn(4, 4),))
    assert graph.output.node == "/sum"


def _mse(outputs, targets):
    return F.mse_loss(outputs, targets)


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ((torch.ones(4, 8), torch.ones(3, 8)), {}, "'x' holds 4 samples and 'targets' holds 3"),
        ((torch.ones(4, 8),), {}, "the last example input is the targets"),
        ({"x": torch.ones(4, 8)}, {}, 'need the key "targets"'),
        (([torch.ones(4, 8)], torch.ones(4, 8)), {}, "'x' is a list"),
        ((torch.ones(4, 8), torch.ones(4, 8)), {"batch_dims": {"z": 0}}, "names 'z'"),
        ((torch.ones(4, 8), torch.ones(4, 8)), {"batch_dims": {"x": 2}}, "on dim 2"),
        ((torch.ones(()), torch.ones(())), {}, "carries the batch"),
        ((torch.ones(2, 8), torch.ones(2, 8), torch.ones(2, 8)), {}, "forward takes 1"),
        (torch.ones(2, 8), {}, "give a tuple of arguments"),
    ],
)
def test_example_inputs_are_checked(inputs, options, message):
    with pytest.raises(UnsupportedModelError) as caught:
        capture(models.MLP(), inputs, loss_fn=_mse, **options)
    assert message in str(caught.value)


def test_lazy_and_uncopyable_models():
    with pytest.raises(UnsupportedModelError, match="run the model once"):
        capture(nn.Sequential(nn.LazyLinear(3)), (torch.ones(2, 4),))
    model = models.MLP()
    model.generator = (index for index in range(3))
    with pytest.raises(UnsupportedModelError, match="cannot be copied"):
        capture(model, (torch.ones(2, 8), torch.ones(2, 8)), loss_fn=_mse)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_weights_that_are_computed_ahead_are_told_what_to_use_instead():
    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 4)))
    with pytest.raises(UnsupportedModelError, match=r"computed tensors .* \(norms of weights: .*"):
        capture(model, (torch.ones(2, 8), torch.ones(2, 4)), loss_fn=_mse)


def test_parameters_without_elements_are_refused():
    model = Model(lambda m, y: y + m.empty.sum())
    model.empty = nn.Parameter(torch.empty(0, 4))
    with pytest.raises(UnsupportedModelError, match="empty is a parameter without elements"):
        capture(model, (torch.randn(4, 4),))


def test_parameters_of_complex_numbers_are_refused():
    model = Model(lambda m, y: (y * m.turn).abs())
    model.turn = nn.Parameter(torch.ones(4, dtype=torch.complex64))
    with pytest.raises(UnsupportedModelError, match=r"turn is a .* read it by torch.view_as_compl"):
        capture(model, (torch.randn(4, 4),))


def test_dtypes_without_a_size_are_refused():
    with pytest.raises(UnsupportedModelError, match="dtype uint16 is not supported"):
        capture(Model(lambda m, y: y * y.to(torch.uint16)), (torch.randn(4, 4),))


@pytest.mark.parametrize(
    ("dims", "message"), [((1, 1), r"not in bfloat16: .*"), ((), "multiplies bfloat16 and float32")]
)
def test_a_model_that_runs_in_float32_only_says_so(dims, message):
    model = Model(lambda m, y: y.view(*dims, -1, 4) @ torch.eye(4).view(*dims, 4, 4))
    with pytest.raises(UnsupportedModelError, match=f"{message}.* give precision='fp32'"):
        capture(model, (torch.randn(4, 4),), dtype=torch.bfloat16)


class Positions(nn.Module):
    def __init__(self, dtype=None):
        super().__init__()
        self.register_buffer("table", torch.ones(4))
        self.dtype = dtype

    def forward(self, x):
        return x + self.table.to(self.dtype)


def test_the_line_that_widened_an_operand_is_named_and_a_cast_there_is_the_cure():
    def model(dtype):
        parts = {"positions": Positions(dtype), "last": nn.Linear(4, 4)}
        return Model(lambda m, y: m.last(m.positions(y).tanh()), **parts)

    line = Positions.forward.__code__.co_firstlineno + 1
    with pytest.raises(UnsupportedModelError, match=rf"cast at \S+errors.py:{line}, which"):
        capture(model(None), (torch.randn(4, 4),), dtype=torch.bfloat16)
    capture(model(torch.bfloat16), (torch.randn(4, 4),), dtype=torch.bfloat16)


class Dict(nn.Module):
    def forward(self, batch):
        return batch["x"].sum()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (({"x": torch.ones(2), "y": torch.ones(2)},), r"def forward\(self, x, y\)"),
        ({"x": torch.ones(2)}, r"name 'x', which Dict.forward does not take; it takes batch,"),
    ],
)
def test_a_batch_in_a_dict_is_refused_with_the_arguments_that_it_should_be(inputs, message):
    with pytest.raises(UnsupportedModelError, match=message):
        capture(Dict(), inputs)


def test_packed_sequences_of_transformers_models_are_refused():
    ids, labels = models.tokens(2, 8, 61)
    places = torch.arange(4).repeat(2, 2)
    batch = {"input_ids": ids, "labels": labels, "position_ids": places}
    with pytest.raises(UnsupportedModelError, match=r"position_ids .* leave them out"):
        capture(models.llama(), batch)
