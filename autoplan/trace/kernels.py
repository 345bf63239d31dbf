"""Runs an operator as the GPU would, as far as that changes what autograd keeps.

Some operators save other tensors on a GPU than on a CPU: dropout keeps a bool mask instead of a
float one, attention runs fused and keeps its log-sum-exp instead of the score matrix. Their GPU
kernels have shape functions that work on fake CPU tensors, so they are called by name. Recurrent
layers (``recurrent``) keep their gates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch

from autoplan.trace.recurrent import RECURRENT, keeping_gates

_aten = torch.ops.aten
_FLASH_DTYPES = (torch.float16, torch.bfloat16)
_FLASH_MAX_HEAD_DIM = 256

Call = Callable[[Any, tuple, Mapping[str, Any]], Any]
Kernels = Literal["gpu", "cpu"]


def call_of(kernels: Kernels) -> Call:
    """How operators run on a kind of device."""
    return gpu_call if kernels == "gpu" else cpu_call


def cpu_call(target: Any, args: tuple, kwargs: Mapping[str, Any]) -> Any:
    """The operator itself, as it runs on a CPU."""
    return target(*args, **kwargs)


def gpu_call(target: Any, args: tuple, kwargs: Mapping[str, Any]) -> Any:
    """The operator as a GPU runs it: native dropout, fused attention."""
    if target is _aten.dropout.default:
        return _aten.native_dropout.default(args[0], args[1], True)[0]
    if target is _aten.scaled_dot_product_attention.default and args[0].dim() == 4:
        return _attention(*args, **kwargs)
    if target in RECURRENT and args[0].dim() == 3:
        return keeping_gates(target, args)
    return target(*args, **kwargs)


def _attention(
    query,
    key,
    value,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    *,
    scale=None,
    enable_gqa=False,
):
    heads_equal = query.shape[-1] == value.shape[-1]
    if (
        attn_mask is None
        and query.dtype in _FLASH_DTYPES
        and heads_equal
        and query.shape[-1] <= _FLASH_MAX_HEAD_DIM
    ):
        return _aten._scaled_dot_product_flash_attention.default(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
    groups = query.shape[-3] // key.shape[-3] if enable_gqa else 1
    if groups > 1:
        key, value = (x.repeat_interleave(groups, -3) for x in (key, value))
    if attn_mask is not None:
        attn_mask = _float_mask(attn_mask, query).expand(*query.shape[:-1], key.shape[-2])
    return _aten._scaled_dot_product_efficient_attention.default(
        query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale
    )[0]


def _float_mask(mask: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    if mask.dtype is not torch.bool:
        return mask
    zeros = torch.zeros(mask.shape, dtype=query.dtype)
    return zeros.masked_fill(mask.logical_not(), float("-inf"))
