"""From an ``nn.Module`` and example inputs to an ``OpGraph``.

The model is exported twice, on fake tensors at two batches, so that sizes that follow the batch
show; losses are normalised (``normalise``), costs and kept tensors are measured by a fake run
(``saved``), and repeated blocks are found (``blocks``). The given model is never changed, run or
copied: its weights may be on any device, ``meta`` included.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from autoplan.trace import huggingface
from autoplan.trace.batch_sizes import BATCHES, mark_batch_dims
from autoplan.trace.blocks import find_blocks
from autoplan.trace.clean import clean
from autoplan.trace.clone import clone_on_fakes
from autoplan.trace.convert import convert
from autoplan.trace.fingerprint import fingerprint
from autoplan.trace.graph import OpGraph, Ref
from autoplan.trace.inputs import BatchDims, ExampleInputs, Input, read_inputs
from autoplan.trace.naming import named
from autoplan.trace.normalise import normalise_batch_means
from autoplan.trace.placeholders import (
    Placeholder,
    merge_tied,
    read_placeholders,
    tied_names,
)
from autoplan.trace.program import LossFn, LossProgram, export_loss
from autoplan.trace.saved import run_graph


def capture(
    model: nn.Module,
    example_inputs: ExampleInputs,
    *,
    loss_fn: LossFn | None = None,
    batch_dims: BatchDims | None = None,
    dtype: torch.dtype | None = None,
) -> OpGraph:
    """Traces one training forward pass of ``model``, in the mode (train or eval) it is in.

    Args:
        model: returns the loss (a scalar, or an output with ``.loss``) unless ``loss_fn`` is given.
        example_inputs: a tuple of arguments or a dict of keyword arguments, at any batch. With a
            ``loss_fn``, the targets are the last element, or the key ``targets`` (or ``labels``).
        loss_fn: called as ``loss_fn(outputs, targets)``.
        batch_dims: dim of the batch by input name, None for an input without one; dim 0 otherwise.
        dtype: floating-point dtype that parameters and inputs are cast to; buffers keep theirs.

    Returns:
        The graph, written at batch 2; see ``OpGraph.at_batch``.

    Raises:
        UnsupportedModelError: whatever cannot be traced faithfully, in one line.
    """
    inputs = read_inputs(
        model, example_inputs, with_targets=loss_fn is not None, batch_dims=batch_dims
    )
    traces = [_trace(model, inputs, loss_fn, dtype, batch) for batch in BATCHES]
    graphs = traces[0].graph, traces[1].graph
    mark_batch_dims(*graphs)
    for graph in graphs:
        normalise_batch_means(graph)
    mark_batch_dims(*graphs)
    runs = run_graph(graphs[0]), run_graph(graphs[1])
    nodes, names = named(convert(*graphs, runs, traces[0].placeholders))
    loss = next(node for node in graphs[0].nodes if node.op == "output").args[0][0]
    output = Ref(names[loss.name])
    tied = traces[0].tied
    return OpGraph(
        nodes=nodes,
        blocks=find_blocks(nodes, output),
        output=output,
        batch=BATCHES[0],
        tied=tied,
        fingerprint=fingerprint(nodes, tied, output),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trace:
    graph: fx.Graph
    placeholders: dict[str, Placeholder]
    tied: tuple[tuple[str, ...], ...]


def _trace(
    model: nn.Module,
    inputs: tuple[Input, ...],
    loss_fn: LossFn | None,
    dtype: torch.dtype | None,
    batch: int,
) -> _Trace:
    mode = FakeTensorMode()
    clone = clone_on_fakes(model, mode, dtype)
    if huggingface.is_pretrained(clone):
        huggingface.disable_caches(clone)
    if isinstance(loss_fn, nn.Module):
        loss_fn = clone_on_fakes(loss_fn, mode, dtype)
    tied = tied_names(clone)
    tensors = tuple(given.fake(mode, batch, dtype) for given in inputs if given.is_tensor)
    program = export_loss(LossProgram(clone, inputs, loss_fn), tensors)
    merge_tied(program, tied)
    clean(program.graph_module)
    return _Trace(
        graph=program.graph,
        placeholders=read_placeholders(program, inputs, tied),
        tied=tied,
    )
