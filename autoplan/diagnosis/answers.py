"""Lets a trace go on where the forward asks for the values of a tensor, and notes the place.

A branch goes the way of true, a number is one, a mask selects everything: the rest of the forward
is then traced too, on one of the ways that it may take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from autoplan.trace.program import BRANCHES
from autoplan.trace.refusals import RefusalError, Refuse, refused_here
from autoplan.trace.torch_private import FakeTensor


class Answers(TorchFunctionMode):
    """While active, values that no fake tensor has are made up.

    Args:
        refuse: told of every place.
    """

    def __init__(self, refuse: Refuse) -> None:
        super().__init__()
        self._refuse = refuse

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if args and _is_unknown(args[0]):
            if name in _VALUES:
                branches = name == "__bool__"
                self._refuse(_branch() if branches else _value())
                return _VALUES[name](args[0])
            selected = _selected(name, args)
            if selected is not None:
                self._refuse(_size())
                return selected
        return func(*args, **(kwargs or {}))


def _branch() -> RefusalError:
    return refused_here(BRANCHES, "use torch.where or torch.cond", "data-dependent branch")


def _value() -> RefusalError:
    what = "the forward takes the value of a tensor into Python, which cannot be traced"
    return refused_here(what, "keep it a tensor", "data-dependent value")


def _size() -> RefusalError:
    what = "the forward selects elements by their values, so that a size depends on the data"
    return refused_here(what, "use a fixed size with a mask", "data-dependent size")


def _is_unknown(value: Any) -> bool:
    """Whether it is a tensor of the trace, and no constant in it."""
    return isinstance(value, FakeTensor) and getattr(value, "constant", None) is None


def _one(tensor: Tensor) -> bool | int | float:
    if tensor.dtype == torch.bool:
        return True
    return 1.0 if tensor.is_floating_point() else 1


def _nested(tensor: Tensor) -> Any:
    """Ones in lists, as deep as the tensor has dims."""
    made: Any = _one(tensor)
    for size in reversed(tensor.shape):
        made = [made] * int(size)
    return made


def _selected(name: str, args: tuple[Any, ...]) -> Tensor | None:
    """All elements, where a mask or their values would select some."""
    tensor, *rest = args
    if name == "nonzero":
        return tensor.new_zeros((tensor.numel(), tensor.dim()), dtype=torch.int64)
    masked = bool(rest) and isinstance(rest[0], Tensor) and rest[0].dtype == torch.bool
    if name == "masked_select" and masked:
        return tensor.flatten()
    if name == "__getitem__" and masked and rest[0].dim():
        return tensor.flatten(0, rest[0].dim() - 1)
    return None


_VALUES: Mapping[str, Callable[[Tensor], Any]] = {
    "__bool__": lambda tensor: True,
    "__int__": lambda tensor: 1,
    "__index__": lambda tensor: 1,
    "__float__": lambda tensor: 1.0,
    "item": _one,
    "tolist": _nested,
}
