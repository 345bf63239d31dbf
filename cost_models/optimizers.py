"""What an optimizer's step needs, per parameter: state, passing memory and memory traffic.

States are fp32 moments. Temporaries and traffic are those of torch's multi-tensor (``foreach``)
implementations, its default on accelerators, with weight decay on: every elementwise kernel reads
its inputs and writes its output in device memory.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Bytes per trainable fp32 parameter that a rank updates.

    Attributes:
        state_bytes: moments, kept between steps.
        temporary_bytes: tensors that live only inside the step, beside weights, gradients and
            states, when no activation is left.
        traffic_bytes: memory read and written by one step.
    """

    state_bytes: int
    temporary_bytes: int
    traffic_bytes: int


OPTIMIZERS = {
    "adamw": Optimizer(state_bytes=8, temporary_bytes=4, traffic_bytes=84),
    "adam": Optimizer(state_bytes=8, temporary_bytes=8, traffic_bytes=88),
    "sgd": Optimizer(state_bytes=0, temporary_bytes=4, traffic_bytes=24),
    "sgd-momentum": Optimizer(state_bytes=4, temporary_bytes=4, traffic_bytes=44),
    "adagrad": Optimizer(state_bytes=4, temporary_bytes=8, traffic_bytes=68),
    "rmsprop": Optimizer(state_bytes=4, temporary_bytes=8, traffic_bytes=68),
}


def optimizer(name: str) -> Optimizer:
    """The needs of an optimizer.

    Raises:
        ValueError: the optimizer is not in the table; the message lists those that are.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"unknown optimizer {name!r}; known: {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name]
