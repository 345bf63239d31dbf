"""What tracing would get silently wrong: refused while it runs, or run in a way that it follows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.distributions import Distribution
from torch.nn.modules.module import register_module_buffer_registration_hook
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from autoplan.trace.own_backward import inlined, is_derivative
from autoplan.trace.refusals import RefusalError, Refuse, refuse_at_once, refused_here
from autoplan.trace.torch_private import GENERATED_AUTOGRAD

_DEFINE = "define it with torch.library.custom_op and register_autograd"


def autocast_around() -> str | None:
    """The type of device for which ``torch.autocast`` is on; None where it is for none."""
    return next((kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)), None)


def refuse_autocast_around(refuse: Refuse = refuse_at_once) -> None:
    """Refuses to trace under ``torch.autocast``, whose casts the graph would not hold."""
    kind = autocast_around()
    if kind is not None:
        what = f"torch.autocast({kind!r}) is on while the model is traced, which is not supported"
        refuse(refused_here(what, "leave it, and give precision='bf16' or 'fp16'", "autocast"))


@contextmanager
def refuse_autocast_of_absent_devices(refuse: Refuse = refuse_at_once) -> Iterator[None]:
    """Refuses ``torch.autocast("cuda")`` where there is no GPU: PyTorch turns it off there."""
    original = torch.autocast.__init__

    def init(self, device_type, dtype=None, enabled=True, cache_enabled=None):
        if enabled and device_type == "cuda" and not torch.cuda.is_available():
            what = "torch.autocast('cuda') inside the model is not supported"
            refuse(refused_here(what, "leave the precision to autoplan", "autocast"))
        original(self, device_type, dtype, enabled, cache_enabled)

    torch.autocast.__init__ = init
    try:
        yield
    finally:
        torch.autocast.__init__ = original


def cpu_by_default() -> AbstractContextManager[Any]:
    """Fake tensors are of the CPU, whatever ``torch.device`` or a default device says around."""
    is_cpu = torch.get_default_device().type == "cpu"
    return nullcontext() if is_cpu else torch.device("cpu")


@contextmanager
def refuse_custom_autograd(refuse: Refuse = refuse_at_once) -> Iterator[None]:
    """Refuses ``torch.autograd.Function``: its forward would be inlined and its backward lost.

    One whose backward is the derivative of its forward (``own_backward``) is inlined. Operators of
    ``torch.library`` have one as well, and are not. ``torch.utils.checkpoint`` with
    ``use_reentrant=True`` is one too, and is traced as without.
    """
    original = torch.autograd.Function.__dict__["apply"]

    def apply(cls, *args, **kwargs):
        if cls is CheckpointFunction:
            return _not_reentrant(*args)
        if cls.__module__ != GENERATED_AUTOGRAD:
            if not kwargs and is_derivative(cls, original.__get__(None, cls), args):
                return inlined(cls, args)
            what = f"{cls.__name__} is a custom torch.autograd.Function, whose backward cannot be"
            refuse(refused_here(f"{what} traced", _DEFINE, "custom autograd"))
        return original.__get__(None, cls)(*args, **kwargs)

    torch.autograd.Function.apply = classmethod(apply)  # pyright: ignore
    try:
        yield
    finally:
        torch.autograd.Function.apply = original  # pyright: ignore


def _not_reentrant(function: Callable[..., Any], _: bool, *given: Any) -> Any:
    """What is computed of inputs that learn nothing learns nothing either, weights included."""
    if any(isinstance(value, torch.Tensor) and value.requires_grad for value in given):
        return checkpoint(function, *given, use_reentrant=False)
    with torch.no_grad():
        return function(*given)


@contextmanager
def inference_without_grad() -> Iterator[None]:
    """Runs ``torch.inference_mode`` as ``torch.no_grad``, which export sees and the graph holds."""

    def enter(region: torch.inference_mode) -> None:
        regions.append(torch.no_grad() if region.mode else nullcontext())
        regions[-1].__enter__()

    def leave(region: torch.inference_mode, *error: Any) -> None:
        regions.pop().__exit__(*error)

    regions: list[AbstractContextManager[Any]] = []
    with mock.patch.multiple(torch.inference_mode, __enter__=enter, __exit__=leave):
        yield


@contextmanager
def refuse_tensor_hooks(refuse: Refuse = refuse_at_once) -> Iterator[None]:
    """Refuses hooks on gradients that a forward sets: the graph does not hold them."""
    original = torch.Tensor.register_hook

    def register_hook(tensor, hook):
        what = "the forward sets a hook on the gradient of a tensor, which cannot be traced"
        refuse(refused_here(what, _DEFINE, "gradient hook"))
        return original(tensor, hook)

    torch.Tensor.register_hook = register_hook  # pyright: ignore
    try:
        yield
    finally:
        torch.Tensor.register_hook = original


def refuse_packed_sequences(refuse: Refuse = refuse_at_once) -> AbstractContextManager[Any]:
    """Refuses packed sequences, whose number of steps depends on the data.

    A survey goes on to what PyTorch says of them.
    """
    original = torch._VF._pack_padded_sequence  # pyright: ignore

    def pack(*args):
        what = "pack_padded_sequence makes sizes that depend on the data, which cannot be traced"
        cure = "run the layer on the padded batch, and mask or gather its outputs by the lengths"
        refuse(refused_here(what, cure, "data-dependent size"))
        return original(*args)

    return mock.patch.object(torch._VF, "_pack_padded_sequence", pack, create=True)


def unchecked_distributions() -> AbstractContextManager[Any]:
    """Distributions do not look at the values of their parameters, which are not known."""
    return mock.patch.object(Distribution, "_validate_args", False)


@contextmanager
def refuse_assigned_buffers(refuse: Refuse = refuse_at_once) -> Iterator[None]:
    """Refuses a forward that gives a buffer a new value: the graph would keep the old one."""

    def look(module: nn.Module, name: str, value: torch.Tensor | None) -> None:
        if name in module._buffers and module._buffers[name] is not value:
            what = f"the forward assigns to the buffer {name!r} of {type(module).__name__}"
            what = f"{what}, which is not supported"
            refuse(refused_here(what, "update it outside the model", "buffer mutation"))

    handle = register_module_buffer_registration_hook(look)
    try:
        yield
    finally:
        handle.remove()


def refuse_parameter_hooks(model: nn.Module, refuse: Refuse = refuse_at_once) -> None:
    """Refuses hooks on gradients of parameters: the pieces that are trained do not have them."""
    for name, parameter in model.named_parameters():
        if gradient_hooks(parameter):
            what = f"{name} has a hook on its gradient, which would not run in parallel training"
            cure = "change the gradient between train_step and the optimizer's step"
            refuse(RefusalError(what, "", cure, "gradient hook"))


def gradient_hooks(parameter: nn.Parameter) -> int:
    """How many hooks there are on the gradient of a parameter."""
    behind = getattr(parameter, "_post_accumulate_grad_hooks", None)
    return len(parameter._backward_hooks or ()) + len(behind or ())


@contextmanager
def refuse_python_random(refuse: Refuse = refuse_at_once) -> Iterator[None]:
    """Refuses a forward that draws from ``random`` or ``numpy.random``; gives their states back."""
    before, numbers = random.getstate(), np.random.get_state(legacy=False)
    try:
        yield
    finally:
        drawn = {
            "Python's random module": random.getstate() != before,
            "numpy.random": _position(np.random.get_state(legacy=False)) != _position(numbers),
        }
        random.setstate(before)
        np.random.set_state(numbers)
    for origin in (name for name, is_drawn in drawn.items() if is_drawn):
        what = f"the forward draws from {origin}, so every step is another graph"
        cure = "draw with torch, or make the choice outside the model"
        refuse(RefusalError(what, "", cure, "randomness"))


def _position(state: Any) -> tuple[int, bytes, int]:
    """Where numpy's generator is: in its array of numbers, and whether it keeps a normal one."""
    held = state["state"]
    return held["pos"], held["key"].tobytes(), state["has_gauss"]
