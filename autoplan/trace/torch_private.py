"""Every private name of torch that tracing uses, in one place.

``PRIVATE_NAMES`` lists them, so that a test can name what a new torch release took away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import _symbolic_trace
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.fx.node import has_side_effect
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

PRIVATE_NAMES = (
    "torch._C.DisableTorchFunction",
    "torch._ops.OpOverload",
    "torch._subclasses.fake_tensor.FakeTensor",
    "torch._subclasses.fake_tensor.FakeTensorMode",
    "torch.fx._symbolic_trace._orig_module_getattr",
    "torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode",
    "torch.fx.node.has_side_effect",
    "torch.ops.aten._scaled_dot_product_efficient_attention",
    "torch.ops.aten._scaled_dot_product_flash_attention",
    "torch.ops.higher_order.wrap_with_autocast",
    "torch.ops.higher_order.wrap_with_set_grad_enabled",
    "torch.utils._pytree.tree_flatten",
)

__all__ = [
    "AUTOCAST_REGION",
    "GRAD_MODE_REGION",
    "FakeTensor",
    "FakeTensorMode",
    "GuardOnDataDependentSymNode",
    "OpOverload",
    "TreeSpec",
    "fake_like",
    "has_side_effect",
    "module_getattr",
    "plain_tensor_access",
    "schema_arguments",
    "storage_id",
    "tree_flatten",
    "tree_leaves",
    "tree_unflatten",
]

OpOverload = torch._ops.OpOverload
GRAD_MODE_REGION = torch.ops.higher_order.wrap_with_set_grad_enabled
AUTOCAST_REGION = torch.ops.higher_order.wrap_with_autocast
plain_tensor_access = torch._C.DisableTorchFunction
"""Context in which reading a tensor's attributes is not traced."""


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
