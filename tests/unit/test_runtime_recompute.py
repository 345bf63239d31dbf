"""What calls that run again keep, make again and give back, on autograd itself."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from autoplan.runtime.recompute import recomputing

F64 = torch.float64


class Counted:
    """Calls a function and counts how often."""

    def __init__(self, function):
        self.function, self.count = function, 0

    def __call__(self, *args, **kwargs):
        self.count += 1
        return self.function(*args, **kwargs)


class Made:
    """Remembers storages without keeping them."""

    def __init__(self):
        self.storages = []

    def __call__(self, tensor: Tensor) -> Tensor:
        self.storages.append(weakref.ref(tensor.untyped_storage()))
        return tensor

    def alive(self) -> list[bool]:
        gc.collect()
        return [storage() is not None for storage in self.storages]


class Body(nn.Module):
    """Its forward is a function of ``again``, an input and weights."""

    def __init__(self, body, *shapes):
        super().__init__()
        torch.manual_seed(0)
        self.body = body
        self.weights = nn.ParameterList(torch.randn(shape, dtype=F64) for shape in shapes)

    @recomputing
    def forward(self, again, x):
        return self.body(again, x, *self.weights)


def gradients(module, x):
    """Gradients with ``again`` and with ordinary calls."""
    found = []
    for forward in (
        module,
        lambda x: module.body(lambda f, *a, **k: f(*a, **k), x, *module.weights),
    ):
        x = x.detach().requires_grad_()
        module.zero_grad()
        forward(x).square().sum().backward()
        found.append([x.grad, *(weight.grad for weight in module.weights)])
    return found


X = torch.randn(6, 4, dtype=F64, generator=torch.Generator().manual_seed(1))


def test_what_an_operator_that_is_kept_saves_is_made_again():
    made, gelu = Made(), Counted(torch.nn.functional.gelu)

    def body(again, x, up, down):
        y = x @ up
        z = made(again(gelu, y))
        return z @ down

    module = Body(body, (4, 8), (8, 4))
    out = module(X)
    assert made.alive() == [False]
    assert gelu.count == 1
    out.sum().backward()
    assert gelu.count == 2
    ours, plain = gradients(module, X)
    assert all(map(torch.equal, ours, plain))


def test_chains_and_views_are_made_again_from_what_is_kept():
    made, calls = Made(), Counted(torch.sin)

    def body(again, x, up, down):
        a = made(again(torch.matmul, x, up))
        b = made(again(calls, a.unflatten(1, (2, 4)).transpose(0, 1)))
        parts = again(torch.softmax, b, -1).unbind(0)
        c = made(again(torch.cat, [parts[1], parts[0]], dim=1))
        return c @ down

    module = Body(body, (4, 8), (8, 4))
    out = module(X)
    assert made.alive() == [False] * 3
    out.sum().backward()
    assert calls.count == 2
    ours, plain = gradients(module, X)
    assert all(map(torch.equal, ours, plain))


def test_everything_goes_with_the_backward():
    made = Made()
    repeated = Counted(lambda tensor: made(torch.exp(tensor)))
    module = Body(lambda again, x, up: again(repeated, x @ up) ** 2, (4, 4))
    out = module(X)
    out.sum().backward()
    assert repeated.count == 2
    assert made.alive() == [False, False]


def test_a_forward_without_a_backward_leaves_nothing():
    kept = Made()

    def body(again, x, up, down):
        y = kept(torch.exp(x @ up))
        return again(torch.sigmoid, y) @ down

    module = Body(body, (4, 8), (8, 4))
    out = module(X)
    assert kept.alive() == [True]
    del out
    assert kept.alive() == [False]


def test_a_retained_graph_runs_once_more_for_each_backward():
    calls = Counted(torch.tanh)

    def body(again, x, up, down):
        y = again(calls, x @ up)
        return y @ down + y

    module = Body(body, (4, 4), (4, 4))
    loss = module(X).square().sum()
    loss.backward(retain_graph=True)
    first = [weight.grad.clone() for weight in module.weights]
    loss.backward()
    assert calls.count == 3
    for weight, once in zip(module.weights, first, strict=True):
        torch.testing.assert_close(weight.grad, 2 * once)


def test_a_part_of_the_backward_is_enough():
    def body(again, x, up, down):
        y = again(torch.tanh, x @ up)
        return y @ down

    module = Body(body, (4, 4), (4, 4))
    (grad,) = torch.autograd.grad(module(X).sum(), [module.weights[1]])
    torch.testing.assert_close(grad, torch.tanh(X @ module.weights[0]).sum(0)[:, None].expand(4, 4))


def test_results_that_alias_what_is_kept_stay():
    def body(again, x, up):
        y = x @ up
        z = again(torch.Tensor.contiguous, y)
        return again(torch.exp, z) * z * y

    module = Body(body, (4, 4))
    ours, plain = gradients(module, X)
    assert all(map(torch.equal, ours, plain))


def test_other_dtypes_of_a_storage():
    def body(again, x, up):
        y = again(torch.matmul, x, up)
        turned = torch.view_as_complex(y.unflatten(1, (2, 2)))
        return torch.view_as_real(turned * turned.conj() * turned).flatten(1)

    module = Body(body, (4, 4))
    ours, plain = gradients(module, X)
    assert all(map(torch.equal, ours, plain))


def test_without_gradients_they_are_ordinary_calls():
    calls = Counted(torch.tanh)
    module = Body(lambda again, x, up: again(calls, x @ up), (4, 4))
    with torch.no_grad():
        assert not module(X).requires_grad
    assert calls.count == 1
    assert module(X).requires_grad


def test_the_precision_of_the_forward_is_that_of_the_repetition():
    def body(again, x, up, down):
        y = again(torch.matmul, x, up)
        assert y.dtype == torch.bfloat16
        return again(torch.matmul, y.float().tanh(), down)

    module = Body(body, (4, 4), (4, 4)).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = module(X.float()).float().sum()
    loss.backward()
    assert all(weight.grad.abs().sum() > 0 for weight in module.weights)


def test_a_call_that_keeps_other_tensors_the_second_time_is_named():
    def fickle(x: Tensor, up: Tensor) -> Tensor:
        fickle.count += 1
        return (x @ up).exp() if fickle.count == 1 else (x @ up).exp().tanh()

    fickle.count = 0
    module = Body(lambda again, x, up: again(fickle, x, up), (4, 4))
    loss = module(X).sum()
    with pytest.raises(RuntimeError, match="keeps other tensors for its backward"):
        loss.backward()
