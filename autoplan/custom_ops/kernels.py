"""What an operator must have beside its kernel: a fake one for tracing, and a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autoplan.codegen.operators import operator as overload_of
from autoplan.errors import UnsupportedModelError, first_line
from autoplan.trace.torch_private import FakeTensorMode, tree_leaves, tree_map
from autoplan.trace.trials import leaf


def check_kernels(operator: str, target: str, args: Sequence[Any]) -> None:
    """Runs an operator on tensors, and on fake ones.

    Raises:
        UnsupportedModelError: it has no fake kernel or a wrong one, or no gradient.
        Exception: whatever the operator itself raises.
    """
    call = overload_of(target)
    made = _tensors(call(*tree_map(_learning, list(args))))
    _check_fake(operator, call, args, [tuple(x.shape) for x in made])
    trained = [x for x in made if x.requires_grad]
    if not trained and any(x.is_floating_point() for x in made):
        raise _without_gradient(operator)
    try:
        torch.autograd.backward([x.sum() for x in trained])
    except RuntimeError as error:
        if "autograd" not in str(error):
            raise
        raise _without_gradient(operator) from error


def _check_fake(
    operator: str, call: Any, args: Sequence[Any], shapes: Sequence[tuple[int, ...]]
) -> None:
    mode = FakeTensorMode()
    fakes = tree_map(lambda x: mode.from_tensor(x) if isinstance(x, Tensor) else x, list(args))
    try:
        with mode:
            made = [tuple(x.shape) for x in _tensors(call(*fakes))]
    except Exception as error:
        raise UnsupportedModelError(
            f"{operator} has no fake kernel that runs, without which no model that calls it can be "
            f"traced ({first_line(error)}); add one with torch.library.register_fake({operator!r})"
        ) from error
    if made != list(shapes):
        raise UnsupportedModelError(
            f"the fake kernel of {operator} gives shapes {made} where the operator gives "
            f"{list(shapes)}; correct it"
        )


def _without_gradient(operator: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{operator} has no gradient, so that nothing before it would be trained; "
        f"add one with torch.library.register_autograd({operator!r}, backward)"
    )


def _learning(value: Any) -> Any:
    return leaf(value) if isinstance(value, Tensor) else value


def _tensors(value: Any) -> list[Tensor]:
    return [x for x in tree_leaves(value) if isinstance(x, Tensor)]
