"""Lets an emitted program call operators by PyTorch's own bindings, where both are the same.

The program names an overload, ``aten.linear.default``, which says exactly what is run; such a call
goes through Python and packs its arguments in boxes, some 4 us more on the host than ``F.linear``
for the very same operator. In a step of many small operators that is a percent or two. Compilers
keep the overloads, which cost nothing once they are traced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

BINDINGS: Mapping[str, Callable[..., Any]] = {
    "add.Tensor": torch.add,
    "bmm.default": torch.bmm,
    "cat.default": torch.cat,
    "div.Tensor": torch.div,
    "embedding.default": torch.embedding,
    "flatten.using_ints": torch.flatten,
    "gelu.default": F.gelu,
    "layer_norm.default": torch.layer_norm,
    "linear.default": F.linear,
    "matmul.default": torch.matmul,
    "mul.Tensor": torch.mul,
    "neg.default": torch.neg,
    "permute.default": torch.permute,
    "relu.default": torch.relu,
    "reshape.default": torch.reshape,
    "rms_norm.default": torch.rms_norm,
    "scaled_dot_product_attention.default": F.scaled_dot_product_attention,
    "select.int": torch.select,
    "sub.Tensor": torch.sub,
    "tanh.default": torch.tanh,
    "transpose.int": torch.transpose,
    "unsqueeze.default": torch.unsqueeze,
}
"""Bindings that take the arguments of an overload of ``aten``, and run nothing else by them."""


class _Aten:
    """``torch.ops.aten`` with the bindings in place of their overloads."""

    def __init__(self) -> None:
        for target, binding in BINDINGS.items():
            packet, overload = target.split(".")
            if packet not in vars(self):
                setattr(self, packet, _Packet(getattr(torch.ops.aten, packet)))
            setattr(getattr(self, packet), overload, binding)

    def __getattr__(self, packet: str) -> Any:
        return getattr(torch.ops.aten, packet)


class _Packet:
    """The overloads of one name."""

    def __init__(self, packet: Any) -> None:
        self._packet = packet

    def __getattr__(self, overload: str) -> Any:
        return getattr(self._packet, overload)


DIRECT_ATEN = _Aten()
"""What programs that run eagerly are built with, by ``codegen.build_module``."""
