"""What an optimizer's step needs, per parameter: state, passing memory and memory traffic.

States are fp32 moments. Temporaries and traffic of ``OPTIMIZERS`` are those of torch's multi-tensor
(``foreach``) implementations, its default on accelerators, with weight decay on: every elementwise
kernel reads its inputs and writes its output in device memory.

``PRICED`` adds optimizers whose state is not one or two whole moments, or that torch lacks:

- LAMB (You et al. 2020), by Apex' fused kernels: the first reads weight, gradient and moments and
  writes moments and update, the norms read weight and update, the second applies the update.
- Adafactor (Shazeer and Stern 2018, section 4) keeps, of a matrix' second moment, sums of rows and
  columns only; of a vector's all of it. As ``torch.optim.Adafactor``, without a first moment.
- 8-bit AdamW (Dettmers et al. 2022): both moments in one byte with an fp32 scale for each block of
  256; tensors of less than 4,096 elements keep fp32 moments. One fused kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

_SMALLEST_8_BIT = 4096
_SCALED_BLOCK = 256


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Bytes per trainable fp32 parameter that a rank updates.

    Attributes:
        state_bytes: moments, kept between steps; of vectors where the moment is ``factored``.
        temporary_bytes: tensors that live only inside the step, beside weights, gradients and
            states, when no activation is left.
        traffic_bytes: memory read and written by one step.
        one_tensor_bytes: ``temporary_bytes`` of a step that takes one tensor after the other, per
            element of the largest: torch's default on CPUs (``torch.optim``'s ``_single_tensor_*``
            functions), where names of the tensor before hold what passed for it; None: the same.
        moments: how many elements and bytes they have: ``whole``, ``factored`` or ``8-bit``.
    """

    state_bytes: float
    temporary_bytes: float
    traffic_bytes: float
    moments: Literal["whole", "factored", "8-bit"] = "whole"
    one_tensor_bytes: float | None = None


OPTIMIZERS = {
    "adamw": Optimizer(state_bytes=8, temporary_bytes=4, traffic_bytes=84, one_tensor_bytes=12),
    "adam": Optimizer(state_bytes=8, temporary_bytes=8, traffic_bytes=88, one_tensor_bytes=16),
    "sgd": Optimizer(state_bytes=0, temporary_bytes=4, traffic_bytes=24),
    "sgd-momentum": Optimizer(state_bytes=4, temporary_bytes=4, traffic_bytes=44),
    "adagrad": Optimizer(state_bytes=4, temporary_bytes=8, traffic_bytes=68, one_tensor_bytes=12),
    "rmsprop": Optimizer(state_bytes=4, temporary_bytes=8, traffic_bytes=68, one_tensor_bytes=12),
}
_SCALED = 1 + 4 / _SCALED_BLOCK
PRICED = OPTIMIZERS | {
    "lamb": Optimizer(state_bytes=8, temporary_bytes=0, traffic_bytes=48),
    "adafactor": Optimizer(state_bytes=4, temporary_bytes=4, traffic_bytes=84, moments="factored"),
    "adamw-8bit": Optimizer(
        state_bytes=2 * _SCALED, temporary_bytes=0, traffic_bytes=12 + 4 * _SCALED, moments="8-bit"
    ),
}


def optimizer(name: str) -> Optimizer:
    """The needs of an optimizer.

    Raises:
        ValueError: the optimizer is not in the table; the message lists those that are.
    """
    if name not in PRICED:
        raise ValueError(f"unknown optimizer {name!r}; known: {', '.join(PRICED)}")
    return PRICED[name]


def one_tensor_bytes(name: str) -> float:
    """What passes in a step that takes one tensor after the other, per element of the largest.

    Raises:
        ValueError: the optimizer is not known.
    """
    needs = optimizer(name)
    return needs.temporary_bytes if needs.one_tensor_bytes is None else needs.one_tensor_bytes


def state_bytes(name: str, shape: Sequence[int]) -> float:
    """Bytes of the state of one parameter tensor (or of the shard that a rank updates).

    Raises:
        ValueError: the optimizer is not known.
    """
    needs, elements = optimizer(name), math.prod(shape)
    if needs.moments == "factored" and len(shape) > 1:
        return needs.state_bytes * (elements / shape[-1] + elements / shape[-2])
    if needs.moments == "8-bit":
        if elements < _SMALLEST_8_BIT:
            return 8.0 * elements
        return 2.0 * (elements + 4 * math.ceil(elements / _SCALED_BLOCK))
    return needs.state_bytes * elements
