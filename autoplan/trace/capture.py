"""From an ``nn.Module`` and example inputs to an ``OpGraph``.

The model is exported twice, on fake tensors at two batches, so that sizes that follow the batch
show; losses are normalised (``normalise``), costs and kept tensors are measured by a fake run
(``saved``), and repeated blocks are found (``blocks``). The given model is never changed, run or
copied: its weights may be on any device, ``meta`` included.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import torch
from torch import nn

from autoplan.errors import UnsupportedModelError
from autoplan.job import BatchNormMode
from autoplan.trace.batch_sizes import FIRST, Batches, traced_batches
from autoplan.trace.blocks import find_blocks
from autoplan.trace.draws import refuse_untagged_draws
from autoplan.trace.fingerprint import fingerprint
from autoplan.trace.graph import OpGraph, Ref
from autoplan.trace.guards import (
    cpu_by_default,
    refuse_autocast_around,
    refuse_parameter_hooks,
)
from autoplan.trace.inputs import BatchDims, ExampleInputs, read_inputs
from autoplan.trace.kernels import Call, Kernels, call_of
from autoplan.trace.naming import live, named
from autoplan.trace.program import LossFn
from autoplan.trace.refusals import RefusalError, Refuse, refuse_at_once
from autoplan.trace.traces import Subject, Traces, drafted, traced
from autoplan.trace.unread import refuse_unread_norms, unread_draws


def capture(
    model: nn.Module,
    example_inputs: ExampleInputs,
    *,
    loss_fn: LossFn | None = None,
    batch_dims: BatchDims | None = None,
    dtype: torch.dtype | None = None,
    global_batch: int | None = None,
    fold: bool = True,
    kernels: Kernels = "gpu",
    unfuses_attention: bool = False,
    batch_norm: BatchNormMode = "sync",
    autocast_on: str | None = None,
    refuse: Refuse = refuse_at_once,
) -> OpGraph:
    """Traces one training forward pass of ``model``, in the mode (train or eval) it is in.

    Args:
        model: returns the loss (``program.outputs_to_loss``) unless ``loss_fn`` is given.
        example_inputs: a tuple of arguments or a dict of keyword arguments, at any batch. With a
            ``loss_fn``, the targets are the last element, or the key ``targets`` (or ``labels``).
        loss_fn: called as ``loss_fn(outputs, targets)``.
        batch_dims: dim of the batch by input name, None for an input without one; dim 0 otherwise.
        dtype: floating-point dtype that parameters and inputs are cast to; buffers keep theirs.
        global_batch: a batch to trace at, besides 2; a forward that differs there is refused.
        fold: trace repeated blocks once and copy them (``repeat_memo``); the result is the same.
        kernels: the kind of device whose kernels decide what autograd keeps.
        unfuses_attention: write attention as its parts even where it has no dropout.
        batch_norm: whether BatchNorms take statistics of the whole batch, or of each part of it.
        autocast_on: ``cpu`` writes out ``torch.autocast("cpu")`` in the model, for runs on CPUs;
            refused is autocast for any other kind of device.
        refuse: told of what cannot be traced faithfully and could be passed over, which raises.

    Returns:
        The graph, written at batch 2; see ``OpGraph.at_batch``.

    Raises:
        UnsupportedModelError: whatever cannot be traced faithfully, in one line.
    """
    refuse_autocast_around(refuse)
    refuse_parameter_hooks(model, refuse)
    inputs = read_inputs(
        model, example_inputs, with_targets=loss_fn is not None, batch_dims=batch_dims
    )
    subject_in = partial(
        Subject,
        model,
        inputs,
        loss_fn,
        unfuses_attention=unfuses_attention,
        batch_norm=batch_norm,
        autocast_on=autocast_on,
        refuse=refuse,
    )
    batches = traced_batches(global_batch)
    made = partial(assemble, batches=batches, call=call_of(kernels), refuse=refuse)
    try:
        return traced(subject_in(dtype=dtype), batches, made, fold=fold)[0]
    except RefusalError as error:
        if error.kind != "graph break" or dtype is None or _runs(subject_in(dtype=dtype)):
            raise
        if not _runs(subject_in(dtype=None)):
            raise
        raise _of_precision(error, dtype) from error


def _runs(subject: Subject) -> bool:
    """Whether the forward runs outside of a trace, on fake tensors."""
    with suppress(Exception), cpu_by_default():
        subject.run(subject.program(), subject.tensors(FIRST))
        return True
    return False


def _of_precision(error: RefusalError, dtype: torch.dtype) -> RefusalError:
    """The error that a model only has in a lower precision than its own."""
    name = str(dtype).removeprefix("torch.")
    what = f"the model runs in its own precision but not in {name}: {error.what}"
    cure = f"cast what it makes in float32 to {name} there, or give precision='fp32'"
    return RefusalError(what, error.where, cure, error.kind)


def assemble(traces: Traces, *, batches: Batches, call: Call, refuse: Refuse) -> OpGraph:
    """The graph of two traces of a loss."""
    drafts, (loss,) = drafted(traces, batches, call)
    needed = live(drafts, (loss,))
    refuse_unread_norms(drafts, needed, refuse)
    nodes, names = named(needed)
    refuse_untagged_draws(nodes, batches[0], refuse)
    output = Ref(names[loss.node], loss.index)
    if not any(
        node.outputs[output.index].requires_grad for node in nodes if node.name == output.node
    ):
        raise UnsupportedModelError(
            "the loss depends on no parameter that is trained; check requires_grad and detach"
        )
    tied = traces[0].tied
    return OpGraph(
        nodes=nodes,
        blocks=find_blocks(nodes, (output,)),
        output=output,
        batch=batches[0],
        tied=tied,
        fingerprint=fingerprint(nodes, tied, output),
        unread_draws=tuple(names[name] for name in unread_draws(drafts, needed)),
    )
