"""When two runs of the same training count as equal."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from autoplan.runtime.comparison import FLOOR, RTOL


def full(tensor: Tensor) -> Tensor:
    """A copy of the whole tensor, gathered where it is split; all its ranks must call it."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def assert_parity(
    got: Mapping[str, Tensor], expected: Mapping[str, Tensor], dtype: torch.dtype
) -> None:
    """Checks max|a - b| <= rtol max|b| + floor L for every tensor.

    L is the largest magnitude among all expected tensors: where a true gradient is zero (the bias
    of attention keys), rounding noise is measured against the model's gradients.

    Args:
        dtype: the lowest precision in which anything was computed; gives rtol and floor.
    """
    assert set(got) == set(expected), set(got) ^ set(expected)
    largest = max((value.abs().max().item() for value in expected.values()), default=0.0)
    for name, value in expected.items():
        assert got[name].shape == value.shape, (name, got[name].shape, value.shape)
        error = (got[name] - value).abs().max().item()
        bound = RTOL[dtype] * value.abs().max().item() + FLOOR[dtype] * largest
        assert error <= bound, f"{name}: off by {error:.3g}, more than {bound:.3g}"
