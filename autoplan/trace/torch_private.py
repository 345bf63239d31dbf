"""Every private name of torch that tracing uses, in one place.

``PRIVATE_NAMES`` lists them, so that a test can name what a new torch release took away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.utils.checkpoint
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import _symbolic_trace
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing as proxies_paused,
)
from torch.fx.experimental.proxy_tensor import get_proxy_mode, track_tensor
from torch.fx.experimental.proxy_tensor import snapshot_fake as detached
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.fx.node import has_side_effect
from torch.nn.modules import transformer
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten

CHECKPOINTED = next(
    name
    for name in (
        "_checkpoint_without_reentrant_generator_impl",  # since 2.14
        "_checkpoint_without_reentrant_generator",
    )
    if hasattr(torch.utils.checkpoint, name)
)
"""What brackets every call under ``torch.utils.checkpoint``, by its name in that module."""

PRIVATE_NAMES = (
    "torch._C.DisableTorchFunction",
    "torch._library.autograd.make_autograd_impl",
    "torch._ops.OpOverload",
    "torch._subclasses.fake_tensor.FakeTensor",
    "torch._subclasses.fake_tensor.FakeTensorMode",
    "torch.fx._lazy_graph_module._use_lazy_graph_module",
    "torch.fx._symbolic_trace._orig_module_getattr",
    "torch.fx.experimental.proxy_tensor.disable_proxy_modes_tracing",
    "torch.fx.experimental.proxy_tensor.get_proxy_mode",
    "torch.fx.experimental.proxy_tensor.snapshot_fake",
    "torch.fx.experimental.proxy_tensor.track_tensor",
    "torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode",
    "torch.fx.node.has_side_effect",
    "torch.nn.modules.batchnorm._BatchNorm",
    "torch.nn.modules.transformer._detect_is_causal_mask",
    "torch.ops.aten._scaled_dot_product_efficient_attention",
    "torch.ops.aten._scaled_dot_product_flash_attention",
    "torch.ops.higher_order.wrap_with_autocast",
    "torch.ops.higher_order.wrap_with_set_grad_enabled",
    "torch.utils._python_dispatch._disable_current_modes",
    "torch.utils._pytree.tree_flatten",
    f"torch.utils.checkpoint.{CHECKPOINTED}",
)

__all__ = [
    "AUTOCAST_REGION",
    "CHECKPOINTED",
    "GENERATED_AUTOGRAD",
    "GRAD_MODE_REGION",
    "LOGGERS",
    "BatchNorm",
    "FakeTensor",
    "FakeTensorMode",
    "GuardOnDataDependentSymNode",
    "OpOverload",
    "TreeSpec",
    "checkpoints_counted",
    "current_tracer",
    "detached",
    "fake_like",
    "has_side_effect",
    "masks_unread",
    "modes_paused",
    "module_getattr",
    "plain_tensor_access",
    "proxies_paused",
    "schema_arguments",
    "stack_traces",
    "storage_id",
    "track_tensor",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_unflatten",
    "uncompiled_graphs",
]

OpOverload = torch._ops.OpOverload
GRAD_MODE_REGION = torch.ops.higher_order.wrap_with_set_grad_enabled
AUTOCAST_REGION = torch.ops.higher_order.wrap_with_autocast
LOGGERS = "torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes"
"""By the names of their modules, those that tell of errors before they are raised."""
WITHOUT_GRAD = "autoplan_without_grad"
GENERATED_AUTOGRAD = "torch._library.autograd"
"""The module that makes the ``torch.autograd.Function`` of an operator of ``torch.library``."""
plain_tensor_access = torch._C.DisableTorchFunction
"""Context in which reading a tensor's attributes is not traced."""


@contextmanager
def modes_paused() -> Iterator[None]:
    """Runs operators on real tensors while a model is traced."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


def storage_id(tensor: torch.Tensor) -> int:
    """Identity of the tensor's memory, valid while some tensor holds it."""
    return tensor.untyped_storage()._cdata


def schema_arguments(node: fx.Node) -> list[Any]:
    """The arguments of an operator call's schema: name, default_value, kwarg_only."""
    operator: Any = node.target
    return operator._schema.arguments


def fake_like(tensor: torch.Tensor, mode: FakeTensorMode, dtype: torch.dtype) -> torch.Tensor:
    """A fake CPU tensor of the size and strides of ``tensor``; a parameter if that is one.

    Made without dispatching any operator, in a twentieth of the time.
    """
    empty = torch.empty_strided(tensor.size(), tensor.stride(), dtype=dtype, device="meta")
    fake: Any = FakeTensor(mode, empty, torch.device("cpu"))
    if isinstance(tensor, nn.Parameter):
        fake.requires_grad_(tensor.requires_grad)
        fake._is_param = True
    return fake


def uncompiled_graphs() -> AbstractContextManager[None]:
    """Context in which no Python source is written for graphs, which here are read and not run."""
    return _use_lazy_graph_module(True)


@contextmanager
def checkpoints_counted() -> Iterator[list[None]]:
    """Gives a list that has an element for every ``torch.utils.checkpoint`` that runs just now."""
    original = getattr(torch.utils.checkpoint, CHECKPOINTED)
    running: list[None] = []

    def counted(*args: Any, **kwargs: Any) -> Iterator[None]:
        running.append(None)
        try:
            yield from original(*args, **kwargs)
        finally:
            running.pop()

    with mock.patch.object(torch.utils.checkpoint, CHECKPOINTED, counted):
        yield running


def masks_unread() -> AbstractContextManager[Any]:
    """Context in which ``nn.Transformer`` takes a mask for causal only where it is told so.

    It would read the mask's values, to leave out one that is causal; with it all is the same.
    """

    def is_causal(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
        return is_causal is True

    return mock.patch.object(transformer, "_detect_is_causal_mask", is_causal)


def current_tracer() -> Any:
    """What writes the graph that is being exported."""
    mode: Any = get_proxy_mode()
    return mode.tracer


@contextmanager
def stack_traces(tracer: Any, trace: Callable[[], str]) -> Iterator[None]:
    """The nodes of calls record ``trace()``, where the tracer would symbolize its whole stack.

    They record too, by ``WITHOUT_GRAD``, that gradients were off; regions of ``torch.no_grad`` that
    an export finds inside regions of ``torch.autocast`` get lost.
    """
    recorded, create_node = tracer.record_stack_traces, tracer.create_node

    def created(*args: Any, **kwargs: Any) -> fx.Node:
        node = create_node(*args, **kwargs)
        if node.op == "call_function" and not node.stack_trace:
            node.stack_trace = trace()
        if not torch.is_grad_enabled():
            node.meta[WITHOUT_GRAD] = True
        return node

    tracer.record_stack_traces, tracer.create_node = False, created
    try:
        yield
    finally:
        tracer.record_stack_traces = recorded
        del tracer.create_node


@contextmanager
def module_getattr(
    wrapped: Callable[[Callable[..., Any]], Callable[[nn.Module, str], Any]],
) -> Iterator[None]:
    """Replaces ``nn.Module.__getattr__``, of which fx keeps its own reference.

    Args:
        wrapped: makes the replacement from the original.
    """
    original: Any = nn.Module.__getattr__
    kept = _symbolic_trace._orig_module_getattr
    replacement = wrapped(original)
    setattr(nn.Module, "__getattr__", replacement)  # noqa: B010
    _symbolic_trace._orig_module_getattr = replacement
    try:
        yield
    finally:
        setattr(nn.Module, "__getattr__", original)  # noqa: B010
        _symbolic_trace._orig_module_getattr = kept
