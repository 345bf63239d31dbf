"""What running an operator on trial needs: tensors that learn, and whether two results are one."""

from __future__ import annotations

import torch
from torch import Tensor

_TOLERANCE = {
    torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2
}  # fmt: skip
_NOTHING = 1e-3
"""What counts as the largest value where all are smaller: sums that cancel leave rounding."""


def leaf(tensor: Tensor, *, learns: bool | None = None) -> Tensor:
    """A copy of its own that collects a gradient; any floating-point one does unless told."""
    learns = tensor.is_floating_point() if learns is None else learns
    return tensor.detach().clone().requires_grad_(learns)


def is_close(found: Tensor, expected: Tensor) -> bool:
    """Whether two results differ by rounding alone, as a share of the largest finite value."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if not expected.is_floating_point() or not expected.numel():
        return torch.equal(found, expected)
    largest = float(expected.detach().nan_to_num(0.0, 0.0, 0.0).abs().max())
    allowed = _TOLERANCE[expected.dtype] * (_NOTHING + largest)
    return torch.allclose(found, expected, rtol=0, atol=allowed, equal_nan=True)
