"""Custom ``torch.autograd.Function`` whose backward is the derivative of its forward.

An export inlines the forward of one and loses its backward. Many are written to keep less memory
and compute the same: their forward is as good. A trial tells: the function and the autograd of its
forward are run on small random tensors, and results and gradients are compared, for small and large
gradients alike. Whatever cannot be run so is not known to be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from autoplan.trace.torch_private import modes_paused
from autoplan.trace.trials import is_close, leaf

Apply = Callable[..., Any]
_SCALES = (1.0, 8.0)
_GRADIENT_SCALES = (1.0, 1e-9, 1e9)
"""A backward that clips gradients differs where they are large, one that drops some where small."""
_LARGEST = 16
"""Sizes beyond are made smaller, equal ones alike."""


class _Alone(TorchDispatchMode):
    """Lets nothing send messages: a trial runs on one rank, and others would not answer."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "c10d" in func.namespace:
            raise RuntimeError(f"{func} sends messages")
        return func(*args, **(kwargs or {}))


class _Context:
    """What a forward is given to keep things for its backward, of which there is none."""

    def __init__(self, args: Sequence[Any]):
        self.needs_input_grad = tuple(isinstance(x, Tensor) and x.requires_grad for x in args)

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keeps nothing."""

    def set_materialize_grads(self, value: bool) -> None:
        """Concerns the backward alone."""


def inlined(function: type[torch.autograd.Function], args: Sequence[Any]) -> Any:
    """The results of its forward, as those of ordinary operators."""
    if function.setup_context is not torch.autograd.Function.setup_context:
        return function.forward(*args)
    return function.forward(_Context(args), *args)


def is_derivative(
    function: type[torch.autograd.Function], apply: Apply, args: Sequence[Any]
) -> bool:
    """Whether its backward was seen to give what autograd gives for its forward.

    Args:
        apply: its own, of real tensors.
        args: of the call that is traced; of its tensors only what they look like is read.
    """
    with (
        modes_paused(),
        _Alone(),
        torch.random.fork_rng(devices=[]),
        torch.enable_grad(),
        suppress(Exception),
    ):
        return all(
            _agrees(function, apply, args, scale, of_gradients)
            for scale in _SCALES
            for of_gradients in _GRADIENT_SCALES
        )
    return False


def _agrees(
    function: type[torch.autograd.Function],
    apply: Apply,
    args: Sequence[Any],
    scale: float,
    of_gradients: float,
) -> bool:
    torch.manual_seed(0)
    sizes = _smaller(args)
    drawn = [_random(x, sizes, scale) if isinstance(x, Tensor) else x for x in args]
    own = _run(apply, drawn, of_gradients)
    derived = _run(lambda *given: inlined(function, given), drawn, of_gradients)
    return len(own) == len(derived) and all(map(is_close, own, derived))


def _smaller(args: Sequence[Any]) -> dict[int, int]:
    """A small even size for each large one among the tensors."""
    large = sorted({n for x in args if isinstance(x, Tensor) for n in x.shape if n > _LARGEST})
    return {size: _LARGEST + 2 * (index + 1) for index, size in enumerate(large)}


def _random(like: Tensor, sizes: dict[int, int], scale: float) -> Tensor:
    shape = [sizes.get(size, size) for size in like.shape]
    if like.is_floating_point():
        return leaf(torch.randn(shape, dtype=torch.float64) * scale, learns=like.requires_grad)
    return torch.randint(2, shape).to(like.dtype)


def _run(call: Callable[..., Any], drawn: Sequence[Any], scale: float) -> list[Tensor]:
    """Results, and gradients of what learns from random ones of them, of that scale."""
    given = [leaf(x, learns=x.requires_grad) if isinstance(x, Tensor) else x for x in drawn]
    torch.manual_seed(1)
    made = call(*given)
    results = [made] if isinstance(made, Tensor) else list(made)
    flows = [(x, torch.randn_like(x) * scale) for x in results if x.requires_grad]
    torch.autograd.backward([x for x, _ in flows], [gradient for _, gradient in flows])
    learning = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
    return [*results, *(torch.zeros_like(x) if x.grad is None else x.grad for x in learning)]
