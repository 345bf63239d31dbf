"""Bindings run what the overloads that they stand for run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import autoplan
from autoplan.runtime.direct_calls import BINDINGS, DIRECT_ATEN

X = torch.linspace(-1, 1, 24).reshape(2, 3, 4)
HEADS = torch.linspace(-1, 1, 48).reshape(1, 2, 6, 4)
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "add.Tensor": ((X, X), {"alpha": 2}),
    "bmm.default": ((X, X.transpose(1, 2)), {}),
    "cat.default": (([X, X], 1), {}),
    "div.Tensor": ((X, 3), {}),
    "embedding.default": ((X[0], torch.tensor([2, 0]), 0, False, False), {}),
    "flatten.using_ints": ((X, 0, 1), {}),
    "gelu.default": ((X,), {"approximate": "tanh"}),
    "layer_norm.default": ((X, [4], X[0, 0], X[0, 1], 1e-5, False), {}),
    "linear.default": ((X, X[0], X[0, :, 0]), {}),
    "matmul.default": ((X, X[0].t()), {}),
    "mul.Tensor": ((X, 0.5), {}),
    "neg.default": ((X,), {}),
    "permute.default": ((X, [2, 0, 1]), {}),
    "relu.default": ((X,), {}),
    "reshape.default": ((X, [3, 8]), {}),
    "rms_norm.default": ((X, [4], X[0, 0], 1e-6), {}),
    "scaled_dot_product_attention.default": (
        (HEADS, HEADS, HEADS, None, 0.0, True), {"scale": 0.5, "enable_gqa": False}
    ),
    "select.int": ((X, 1, -1), {}),
    "sub.Tensor": ((X, 1), {"alpha": 3}),
    "tanh.default": ((X,), {}),
    "transpose.int": ((X, 1, 2), {}),
    "unsqueeze.default": ((X, -1), {}),
}  # fmt: skip


class Dispatched(TorchDispatchMode):
    """Notes which overloads reach the backends, and with what beside tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [arg for arg in args if not isinstance(arg, Tensor)]
        self.found.append((func, repr(plain), repr(kwargs)))
        return func(*args, **(kwargs or {}))


def run(function: Any, target: str) -> tuple[Tensor, list[Any], str]:
    args, kwargs = CALLS[target]
    own = [a.clone().requires_grad_() if isinstance(a, Tensor) and a.is_floating_point() else a
           for a in args]  # fmt: skip
    with Dispatched() as mode:
        result = function(*own, **kwargs)
    return result, mode.found, type(result.grad_fn).__name__


@pytest.mark.parametrize("target", BINDINGS)
def test_a_binding_dispatches_what_its_overload_does(target):
    packet, overload = target.split(".")
    expected = run(getattr(getattr(torch.ops.aten, packet), overload), target)
    got = run(BINDINGS[target], target)
    assert torch.equal(got[0], expected[0])
    assert got[1:] == expected[1:]


def test_bindings_and_all_other_overloads_are_found():
    assert DIRECT_ATEN.add.Tensor is torch.add
    assert DIRECT_ATEN.add.Scalar is torch.ops.aten.add.Scalar
    assert DIRECT_ATEN.erf.default is torch.ops.aten.erf.default


@pytest.mark.parametrize(
    ("torch_compile", "expected"), [(False, DIRECT_ATEN), ("eager", torch.ops.aten)]
)
def test_what_runs_eagerly_calls_directly(torch_compile, expected):
    """Evaluation always does."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    pm = autoplan.compile(
        model, (X[0], X[0]), loss_fn=F.mse_loss, global_batch=3, precision="fp32",
        torch_compile=torch_compile,
    )  # fmt: skip
    with torch.no_grad():
        pm.eval()(X[0])
    program: Any = pm.programs[0]
    assert program.count.__globals__["aten"] is expected
    assert program.evaluate.__globals__["aten"] is DIRECT_ATEN
