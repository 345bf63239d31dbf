"""The graph of a loaded model as a job wants it: in its precision, batch and modes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from autoplan.job import Job

if TYPE_CHECKING:
    from autoplan.trace.graph import OpGraph
    from autoplan.trace.outputs import ModelForward
    from autoplan.zoo import ModelUnderPlan


def captured(
    case: ModelUnderPlan,
    job: Job,
    batch_dims: Mapping[str, int | None] | None = None,
    *,
    unfuses_attention: bool = False,
) -> OpGraph:
    """The graph in the job's precision; in fp32 the model keeps its own dtypes.

    Raises:
        UnsupportedModelError: the model cannot be traced.
    """
    from autoplan import launch
    from autoplan.trace.capture import capture
    from autoplan.trace.precision import COMPUTE_DTYPES

    on_host = launch.runs_on_host(job)
    return capture(
        case.model,
        case.example_inputs,
        loss_fn=case.loss_fn,
        batch_dims=batch_dims,
        dtype=COMPUTE_DTYPES[job.precision],
        global_batch=job.global_batch,
        kernels="cpu" if on_host else "gpu",
        unfuses_attention=unfuses_attention,
        batch_norm=job.batch_norm,
        autocast_on="cpu" if on_host else None,
    )


def forward_of(case: ModelUnderPlan, job: Job) -> ModelForward:
    """The same model without its loss, to be traced when its outputs are asked for."""
    from torch import Tensor

    from autoplan import launch
    from autoplan.trace.inputs import named_inputs
    from autoplan.trace.outputs import ModelForward
    from autoplan.trace.precision import COMPUTE_DTYPES

    has_loss = case.loss_fn is not None
    named = named_inputs(case.model, case.example_inputs, with_targets=has_loss)
    return ModelForward(
        case.model,
        dtype=COMPUTE_DTYPES[job.precision],
        constants={name: value for name, value, _ in named if not isinstance(value, Tensor)},
        batch_norm=job.batch_norm,
        autocast_on="cpu" if launch.runs_on_host(job) else None,
    )
