"""Memory that PyTorch's own operators move, forward and backward, counted as autograd runs them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autoplan.validation.setups.framework_features import MEGATRON_CORE, PYTORCH
from autoplan.validation.step import pointwise
from tests.unit.memory_setups import LLAMA3_8B, gpt, setup

TOKENS, WIDTH = 256, 1024
LLAMA, GPT = setup(LLAMA3_8B, PYTORCH), setup(gpt(1, 1024, 16), PYTORCH)


class Moved(TorchDispatchMode):
    """Bytes of what each operator reads and writes, of expanded tensors what is stored.

    Products are not counted, nor what ``nll_loss`` reads: one logit of a row.
    """

    nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        read, written = _storages((args, kwargs)), _storages(result)
        if "mm" not in str(func) and not written.keys() <= read.keys():
            both = written if "nll_loss" in str(func) else read | written
            self.nbytes += sum(both.values())
        return result


def _storages(values) -> dict[int, int]:
    return {
        value.untyped_storage().data_ptr(): min(value.nbytes, value.untyped_storage().nbytes())
        for value in tree_leaves(values)
        if isinstance(value, torch.Tensor)
    }


def moved(run: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> tuple[float, float]:
    """Bytes per element of the first input, forward and backward."""
    learning = [each.requires_grad_(each.is_floating_point()) for each in inputs]
    with Moved() as forward:
        result = run(*learning)
    gradient = torch.ones_like(result)
    with Moved() as backward:
        result.backward(gradient)
    count = inputs[0].numel()
    return forward.nbytes / count, backward.nbytes / count


def activations(width: int = WIDTH) -> torch.Tensor:
    return torch.randn(TOKENS, width, dtype=torch.bfloat16)


def assert_moves(kernel: pointwise.Moved, found: tuple[float, float]) -> None:
    assert (kernel.forward, kernel.backward) == pytest.approx(found, rel=0.02)


def test_rms_norm() -> None:
    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (wide * scale).type_as(x) * weight

    weight = torch.ones(WIDTH, dtype=torch.bfloat16)
    assert_moves(pointwise.norm(LLAMA), moved(norm, activations(), weight))


def test_layer_norm() -> None:
    weight, bias = (torch.ones(WIDTH, dtype=torch.bfloat16) for _ in range(2))
    found = moved(lambda x, w, b: F.layer_norm(x, (WIDTH,), w, b), activations(), weight, bias)
    assert_moves(pointwise.norm(GPT), found)


def test_residual_without_dropout() -> None:
    """The sum forward; backward the sum of the gradients of both ways."""
    forward, _ = moved(lambda x, y: x + y, activations(), activations())
    _, backward = moved(lambda x, a, b: x @ a + x @ b, activations(), square(), square())
    assert_moves(pointwise.residual(LLAMA), (forward, backward))


def square() -> torch.Tensor:
    return torch.randn(WIDTH, WIDTH, dtype=torch.bfloat16)


def test_gated_and_plain_activations() -> None:
    found = moved(lambda gate, up: F.silu(gate) * up, activations(), activations())
    assert_moves(pointwise.activation(LLAMA), found)
    assert_moves(pointwise.activation(GPT), moved(F.gelu, activations()))


def test_rotary_embedding() -> None:
    """As Llama's reference code has it: products of complex numbers in fp32."""
    turn = torch.polar(torch.ones(TOKENS, WIDTH // 2), torch.randn(TOKENS, WIDTH // 2))

    def rotate(x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.float().reshape(TOKENS, -1, 2))
        return torch.view_as_real(pairs * turn).flatten(1).type_as(x)

    forward, backward = moved(rotate, activations())
    table = 4  # bytes an element here; shared by heads and sequences
    kernel = pointwise.rotary(LLAMA)
    assert kernel.forward == pytest.approx(forward - table, rel=0.02)
    assert kernel.backward == pytest.approx(backward - 2 * table, abs=table)


def test_gradients_of_an_input_of_three_products_are_summed() -> None:
    weights = [square() for _ in range(3)]
    _, backward = moved(lambda x, a, b, c: x @ a + x @ b + x @ c, activations(), *weights)
    assert pointwise.gradient_sums(LLAMA, 3).backward == pytest.approx(backward, rel=0.02)
    assert pointwise.gradient_sums(LLAMA, 3).kernels == 2
    fused = setup(LLAMA3_8B, MEGATRON_CORE)
    assert pointwise.gradient_sums(fused, 3) == pointwise.Moved(forward=0, backward=0, kernels=0)


def test_cross_entropy() -> None:
    targets = torch.randint(0, WIDTH, (TOKENS,))
    found = moved(lambda logits, t: F.cross_entropy(logits.float(), t), activations(), targets)
    assert_moves(pointwise.cross_entropy(LLAMA), found)
