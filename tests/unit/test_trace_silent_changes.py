"""A forward whose effect the graph would not hold is refused, never dropped."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autoplan.errors import UnsupportedModelError
from autoplan.trace.capture import capture
from tests.unit.trace_models import run_graph, state_of


class Model(nn.Module):
    """A linear layer with a buffer, a counter and a cached length around a function under test."""

    def __init__(self, function):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("average", torch.zeros(4))
        self.calls, self.length, self.seen, self.odd = 0, 0, [], False
        self.function = function

    def forward(self, x):
        return self.function(self, self.linear(x)).mean()


def _assigned_buffer(model, y):
    with torch.no_grad():
        model.average = 0.9 * model.average + 0.1 * y.mean(0)
    return y - model.average


def _counted(model, y):
    model.calls += 1
    return y * model.calls


def _growing(model, y):
    model.seen.append(1)
    return y * len(model.seen)


def _flipping(model, y):
    model.odd = not model.odd
    return y if model.odd else -y


def _frozen(model, y):
    return y.detach()


def _hooked(model, y):
    y.register_hook(lambda gradient: gradient * 2)
    return y


def _input_gradient(model, y):
    x = torch.ones_like(y).requires_grad_()
    (gradient,) = torch.autograd.grad(model.linear(x).sum(), x, create_graph=True)
    return y + gradient


class Clipped(torch.autograd.Function):
    """Its gradient is another one where it is large only."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-100, 100)


CASES = {
    "assigns to the buffer 'average' of Model": _assigned_buffer,
    "the forward of Model changes its attribute 'calls'": _counted,
    "the forward of Model changes its attribute 'seen'": _growing,
    "the forward of Model changes its attribute 'odd'": _flipping,
    "the loss depends on no parameter that is trained": _frozen,
    "hook on the gradient of a tensor": _hooked,
    "the number of arguments varies": lambda m, y: y + torch.cat([m.average] * len(y)).sum(),
    "Clipped is a custom torch.autograd.Function": lambda m, y: Clipped.apply(y),
    "as .data and": lambda m, y: y * y.data,
    "and torch.autograd.grad do": _input_gradient,
}


@pytest.mark.parametrize("message", CASES)
def test_refused_by_name_in_one_line(message):
    with pytest.raises(UnsupportedModelError) as caught:
        capture(Model(CASES[message]), (torch.randn(4, 4),))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def _inferred(model, y):
    with torch.inference_mode():
        shift = model.linear(y)
    return y * shift.clone()


def _inferring(model, y):
    @torch.inference_mode()
    def shift():
        return model.linear(y)

    return y * shift().clone()


def _reentrant(model, y):
    return y + checkpoint(model.linear, y, use_reentrant=True)


def _reentrant_on_data(model, y):
    """Nothing that is given learns, so that PyTorch does not train the layer inside."""
    return y + checkpoint(model.linear, y.detach(), use_reentrant=True)


def _checked(model, y):
    """Looks at the values of what it is given, in eager."""
    return torch.distributions.Normal(y, y.exp()).log_prob(model.average)


class Square(torch.autograd.Function):
    """Keeps its operand, as autograd does for the product."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * x * scale

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * ctx.scale * x * gradient, None


def _own_backward(model, y):
    return Square.apply(y, 0.5) + y


@pytest.mark.parametrize(
    "function", [_inferred, _inferring, _reentrant, _reentrant_on_data, _checked, _own_backward]
)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_what_learns_is_what_learns_in_eager(function):
    model, x = Model(function).double(), torch.randn(4, 4, dtype=torch.float64)
    graph = capture(model, (x,)).at_batch(4)
    found, expected = (
        _gradients(model, loss) for loss in (run_graph(graph, state_of(model), {"x": x}), model(x))
    )
    torch.testing.assert_close(found, expected)


def _gradients(model, loss):
    """By a whole backward: checkpoints that enter again know no other."""
    model.zero_grad()
    loss.backward()
    return [parameter.grad for parameter in model.parameters()]


class Numbered(nn.Module):
    """A block that knows its number, so that it is like its neighbours but for that."""

    def __init__(self, number):
        super().__init__()
        self.number, self.norm, self.linear = number, nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(self.norm(x)) * (self.number + 1)


def test_counting_beside_numbered_blocks_is_refused():
    model = Model(lambda m, y: _counted(m, m.blocks(y)))
    model.blocks = nn.Sequential(*map(Numbered, range(6)))
    with pytest.raises(UnsupportedModelError, match="changes its attribute 'calls'"):
        capture(model, (torch.randn(4, 4),))


@pytest.mark.parametrize("after", [False, True])
def test_hooks_on_the_gradients_of_parameters_are_refused(after):
    model = Model(lambda _, y: y)
    if after:
        model.linear.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    else:
        model.linear.weight.register_hook(lambda gradient: gradient * 2)
    with pytest.raises(UnsupportedModelError, match=r"linear\.weight has a hook"):
        capture(model, (torch.randn(4, 4),))


def _cached(model, y):
    model.length = max(model.length, y.shape[-1])
    return y * model.length


@pytest.mark.parametrize(
    "function", [_cached, lambda m, y: checkpoint(m.linear, y, use_reentrant=False)]
)
def test_what_repeats_itself_is_traced(function):
    assert capture(Model(function), (torch.randn(4, 4),)).nodes


@pytest.mark.parametrize(
    "factor", [lambda size: 3.0 if size > 4 else 1.0, lambda size: min(size, 4), lambda size: size]
)
def test_a_forward_is_traced_at_the_global_batch(factor):
    """What a small batch does not show is refused at a large one, and taken at a small one."""

    def scaled(_, y):
        return y * factor(y.shape[0])

    inputs = (torch.randn(4, 4),)
    assert capture(Model(scaled), inputs, global_batch=3).nodes
    if factor(8) == 8:
        assert capture(Model(scaled), inputs, global_batch=8).nodes
        return
    with pytest.raises(UnsupportedModelError, match=r"at batch 8|at another batch"):
        capture(Model(scaled), inputs, global_batch=8)


def test_a_forward_that_changes_no_number_is_run_for_the_traces_alone():
    calls = []

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.size = nn.Linear(4, 4), 4

        def forward(self, x):
            self.size = x.shape[-1]
            calls.append(len(x))
            return self.inner(x).square().sum()

    capture(Watched(), (torch.randn(4, 4),), global_batch=8)
    assert calls == [2, 8]
