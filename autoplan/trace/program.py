"""Runs ``torch.export`` on a clone of the model and reports failures in the user's terms.

The exported program takes tensors only and returns the scalar loss only, so that caches and logits
are no outputs and no dead work is kept for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from autoplan.errors import AutoplanError, UnsupportedModelError, first_line
from autoplan.job import BatchNormMode
from autoplan.trace.batch_norm import whole_batch_norms
from autoplan.trace.ctc import ctc_by_samples
from autoplan.trace.guards import (
    inference_without_grad,
    refuse_assigned_buffers,
    refuse_autocast_of_absent_devices,
    refuse_custom_autograd,
    refuse_packed_sequences,
    refuse_python_random,
    refuse_tensor_hooks,
    unchecked_distributions,
)
from autoplan.trace.huggingface import causal_attention, whole_experts
from autoplan.trace.inputs import Input
from autoplan.trace.partial_graphs import partial_graphs_unprinted
from autoplan.trace.refusals import RefusalError, Refuse, refuse_at_once
from autoplan.trace.repeat_errors import CannotFoldError
from autoplan.trace.source_lines import line_of_error, lines_recorded
from autoplan.trace.torch_private import (
    GuardOnDataDependentSymNode,
    masks_unread,
    uncompiled_graphs,
)

MODEL = "model"
BRANCHES = "the forward branches on the value of a tensor, which cannot be traced"
LossFn = Callable[[Any, Any], torch.Tensor]


class LossProgram(nn.Module):
    """The model and its loss as one function of the input tensors, in the order of ``inputs``."""

    def __init__(self, model: nn.Module, inputs: tuple[Input, ...], loss_fn: LossFn | None):
        super().__init__()
        self.model = model
        self._inputs = tuple((i.name, i.role, None if i.is_tensor else i.value) for i in inputs)
        self._is_tensor = tuple(i.is_tensor for i in inputs)
        self.loss_fn = loss_fn

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(name for name, _, _ in self._inputs)

    def forward(self, *tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        args, kwargs, targets = [], {}, None
        for (name, role, constant), is_tensor in zip(self._inputs, self._is_tensor, strict=True):
            value = next(given) if is_tensor else constant
            if role == "positional":
                args.append(value)
            elif role == "keyword":
                kwargs[name] = value
            else:
                targets = value
        return self.result(self.model(*args, **kwargs), targets)

    def result(self, outputs: Any, targets: Any) -> Any:
        """What the program returns, from what the model does."""
        if self.loss_fn is None:
            return outputs_to_loss(outputs)
        return _checked(self.loss_fn(outputs, targets), "loss_fn")


def outputs_to_loss(outputs: Any) -> torch.Tensor:
    """The scalar loss in a model's outputs.

    The tensor itself, ``.loss``, the key ``loss``, or the one floating-point scalar of a tuple.
    """
    loss = outputs
    if not isinstance(outputs, torch.Tensor):
        loss = outputs.get("loss") if isinstance(outputs, dict) else getattr(outputs, "loss", None)
        scalars = list(filter(_is_loss, outputs)) if isinstance(outputs, (tuple, list)) else []
        if loss is None and len(scalars) == 1:
            return scalars[0]
        if loss is None:
            several = f" ({len(scalars)} of its elements may be one)" if scalars else ""
            raise UnsupportedModelError(
                f"the model returned {type(outputs).__name__} without a loss{several}; "
                "pass its labels, or give loss_fn=loss_fn(outputs, targets)"
            )
    return _checked(loss, "the model")


def _is_loss(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.dim() and value.is_floating_point()


def _checked(loss: Any, origin: str) -> torch.Tensor:
    if not _is_loss(loss):
        what = (
            f"a {str(loss.dtype).removeprefix('torch.')} tensor of shape {tuple(loss.shape)}"
            if isinstance(loss, torch.Tensor)
            else f"a {type(loss).__name__}"
        )
        raise UnsupportedModelError(
            f"{origin} returned {what} where the loss is expected; return a floating-point scalar, "
            "or give loss_fn=loss_fn(outputs, targets)"
        )
    return loss


def export_loss(
    program: LossProgram,
    tensors: tuple[torch.Tensor, ...],
    refuse: Refuse = refuse_at_once,
    batch_norm: BatchNormMode = "sync",
) -> ExportedProgram:
    """Exports the program, of the loss or another result, on fake tensors.

    Args:
        refuse: told what the graph would not hold.
        batch_norm: whose statistics BatchNorms take.

    Raises:
        UnsupportedModelError: in one line, with the user's source line, when it cannot be traced.
    """
    try:
        with (
            torch.enable_grad(),
            causal_attention(program.model, program.input_names),
            masks_unread(),
            whole_experts(),
            whole_batch_norms(batch_norm, refuse),
            ctc_by_samples(),
            refuse_autocast_of_absent_devices(refuse),
            refuse_custom_autograd(refuse),
            inference_without_grad(),
            unchecked_distributions(),
            refuse_tensor_hooks(refuse),
            refuse_assigned_buffers(refuse),
            refuse_packed_sequences(refuse),
            refuse_python_random(refuse),
            lines_recorded(program),
            uncompiled_graphs(),
            partial_graphs_unprinted(),
        ):
            return torch.export.export(program, tensors, strict=False)
    except (AutoplanError, CannotFoldError):
        raise
    except Exception as error:
        raise _explained(error) from error


def _explained(error: Exception) -> RefusalError:
    where = line_of_error(error)
    if isinstance(error, GuardOnDataDependentSymNode):
        cure = "use torch.where or torch.cond"
        return RefusalError(BRANCHES, where, cure, "data-dependent branch")
    what = f"tracing failed: {type(error).__name__}: {first_line(error, 200)}"
    cure = "check that the model runs on the example inputs in eager mode"
    return RefusalError(what, where, cure, "graph break")
