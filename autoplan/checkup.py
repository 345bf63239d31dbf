"""``autoplan.doctor``: what to know about a model before it is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from autoplan import subject
from autoplan.findings import Findings

if TYPE_CHECKING:
    from torch import nn


def doctor(
    model: nn.Module | str,
    example_inputs: tuple[Any, ...] | Mapping[str, Any] | None = None,
    *,
    seq_len: int | None = None,
    inputs: Mapping[str, tuple[int, ...]] | None = None,
    loss_fn: Callable[..., Any] | None = None,
    batch_dims: Mapping[str, int | None] | None = None,
) -> Findings:
    """What of a model stops, limits or costs when it is planned, with the lines of its source.

    The model is traced, not run; where it would be refused, the trace goes on to find the rest.

    Args:
        model, example_inputs, seq_len, inputs, loss_fn, batch_dims: as for ``autoplan.plan``.

    Raises:
        PlanError: a model that cannot be loaded.
        UnsupportedModelError: example inputs that are not the model's.
    """
    from autoplan.diagnosis.examine import examine

    source = subject.describe(model, seq_len, inputs)
    case = subject.given(model, source, example_inputs, loss_fn)
    return examine(source.name, case, batch_dims)
