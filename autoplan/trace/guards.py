"""What tracing would get silently wrong, detected while it runs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from autoplan.errors import UnsupportedModelError


@contextmanager
def refuse_custom_autograd() -> Iterator[None]:
    """Refuses ``torch.autograd.Function``: its forward would be inlined and its backward lost."""
    original = torch.autograd.Function.__dict__["apply"]

    def apply(cls, *args, **kwargs):
        raise UnsupportedModelError(
            f"{cls.__name__} is a custom torch.autograd.Function, whose backward cannot be traced; "
            "define it with torch.library.custom_op and register_autograd"
        )

    torch.autograd.Function.apply = classmethod(apply)  # pyright: ignore
    try:
        yield
    finally:
        torch.autograd.Function.apply = original  # pyright: ignore


@contextmanager
def refuse_python_random() -> Iterator[None]:
    """Refuses a forward that draws from Python's ``random``, and gives the state back."""
    before = random.getstate()
    try:
        yield
    finally:
        after = random.getstate()
        random.setstate(before)
    if after != before:
        raise UnsupportedModelError(
            "the forward draws from Python's random module, so every step is another graph; "
            "draw with torch, or make the choice outside the model"
        )
