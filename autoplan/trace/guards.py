"""What tracing would get silently wrong, detected while it runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_buffer_registration_hook

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


@contextmanager
def refuse_custom_autograd(refuse: Refuse = refuse_at_once) -> Iterator[None]:
    """Refuses ``torch.autograd.Function``: its forward would be inlined and its backward lost.

    Operators of ``torch.library`` have one as well, and are not inlined.
    """
    original = torch.autograd.Function.__dict__["apply"]

    def apply(cls, *args, **kwargs):
        if cls.__module__ != GENERATED_AUTOGRAD:
            what = f"{cls.__name__} is a custom torch.autograd.Function, whose backward cannot be"
            refuse(refused_here(f"{what} traced", _DEFINE, "custom autograd"))
        return original.__get__(None, cls)(*args, **kwargs)

    torch.autograd.Function.apply = classmethod(apply)  # pyright: ignore
    try:
        yield
    finally:
        torch.autograd.Function.apply = original  # pyright: ignore


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
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            what = f"{name} has a hook on its gradient, which would not run in parallel training"
            cure = "change the gradient between train_step and the optimizer's step"
            refuse(RefusalError(what, "", cure, "gradient hook"))


@contextmanager
def refuse_python_random(refuse: Refuse = refuse_at_once) -> Iterator[None]:
    """Refuses a forward that draws from Python's ``random``, and gives the state back."""
    before = random.getstate()
    try:
        yield
    finally:
        after = random.getstate()
        random.setstate(before)
    if after != before:
        what = "the forward draws from Python's random module, so every step is another graph"
        cure = "draw with torch, or make the choice outside the model"
        refuse(RefusalError(what, "", cure, "randomness"))


Attribute = tuple[nn.Module, str]

_OWN = frozenset(vars(nn.Module()))


def _count(value: Any) -> object:
    return len(value) if isinstance(value, (list, dict, set)) else value


@contextmanager
def assigned_numbers(program: nn.Module) -> Iterator[list[Attribute]]:
    """Collects the attributes of modules to which the forward assigns a plain number, and the
    containers whose length it changes; those of the program's own modules, not of torch's graphs.
    """
    original = nn.Module.__setattr__
    assigned: list[Attribute] = []
    forward = program.forward
    modules = list(program.modules())
    own = {id(module) for module in modules}

    @wraps(forward)
    def watched(*args: Any, **kwargs: Any) -> Any:
        """Compares within the trace, after which export puts containers back."""
        before = _lengths(modules)
        result = forward(*args, **kwargs)
        after = _lengths(modules)
        assigned.extend(held for held, length in before.items() if after.get(held) != length)
        return result

    def setattr_(module: nn.Module, name: str, value: Any) -> None:
        if type(value) in (int, float) and id(module) in own:
            assigned.append((module, name))
        original(module, name, value)

    program.forward = watched
    nn.Module.__setattr__ = setattr_  # pyright: ignore
    try:
        yield assigned
    finally:
        nn.Module.__setattr__ = original
        program.forward = forward


def _lengths(modules: Sequence[nn.Module]) -> dict[Attribute, int]:
    """Lengths of the lists, dicts and sets that modules hold beside their parts."""
    return {
        (module, name): len(value)
        for module in modules
        for name, value in vars(module).items()
        if name not in _OWN and isinstance(value, (list, dict, set))
    }


def refuse_counting(
    assigned: Sequence[Attribute], call: Callable[[], object], refuse: Refuse = refuse_at_once
) -> None:
    """Refuses a forward that counts its calls in an attribute: every step would be another graph.

    A number that a second call leaves alone is a cache, which does no harm.

    Args:
        call: runs the forward; a forward that fails outside of tracing is not known to count.
    """
    if not assigned:
        return
    values: list[list[object]] = []
    with suppress(Exception), torch.no_grad():
        for _ in range(2):
            call()
            values.append([_count(getattr(module, name)) for module, name in assigned])
    for (module, name), *seen in zip(assigned, *values, strict=True):
        if len(set(seen)) > 1:
            what = f"the forward of {type(module).__name__} changes its attribute {name!r} at every"
            what = f"{what} call, so every step is another graph"
            refuse(RefusalError(what, "", "give the number as an input tensor", "state"))
