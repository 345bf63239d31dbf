"""From an ``nn.Module`` and example inputs to an ``OpGraph``.

The model is exported twice, on fake tensors at two batches, so that sizes that follow the batch
show; losses are normalised (``normalise``), costs and kept tensors are measured by a fake run
(``saved``), and repeated blocks are found (``blocks``). The given model is never changed, run or
copied: its weights may be on any device, ``meta`` included.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import dataclass, field

import torch
from torch import fx, nn

from autoplan.errors import UnsupportedModelError
from autoplan.job import BatchNormMode
from autoplan.trace import huggingface
from autoplan.trace.batch_sizes import Batches, mark_batch_dims, traced_batches
from autoplan.trace.blocks import find_blocks
from autoplan.trace.clean import clean
from autoplan.trace.clone import FakeClones
from autoplan.trace.collection import collection_paused
from autoplan.trace.convert import Converter
from autoplan.trace.counting import changed_state, refuse_counting
from autoplan.trace.draws import refuse_untagged_draws
from autoplan.trace.fingerprint import fingerprint
from autoplan.trace.graph import OpGraph, Ref
from autoplan.trace.guards import cpu_by_default, refuse_autocast_around, refuse_parameter_hooks
from autoplan.trace.inputs import BatchDims, ExampleInputs, Input, read_inputs
from autoplan.trace.kernels import Call, Kernels, call_of
from autoplan.trace.naming import live, named
from autoplan.trace.normalise import normalise_batch_means
from autoplan.trace.placeholders import (
    Placeholder,
    merge_tied,
    own_path,
    read_placeholders,
    tied_names,
)
from autoplan.trace.program import LossFn, LossProgram, export_loss
from autoplan.trace.refusals import Refuse, refuse_at_once
from autoplan.trace.regions import check_regions, find_regions
from autoplan.trace.repeat_constants import give_constants
from autoplan.trace.repeat_errors import CannotFoldError, WithheldError
from autoplan.trace.repeat_memo import BlockMemo
from autoplan.trace.saved import run_graph
from autoplan.trace.torch_private import FakeTensorMode
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
        model: returns the loss (a scalar, or an output with ``.loss``) unless ``loss_fn`` is given.
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
    subject = _Subject(
        model,
        inputs,
        loss_fn,
        dtype,
        unfuses_attention=unfuses_attention,
        batch_norm=batch_norm,
        autocast_on=autocast_on,
        refuse=refuse,
    )
    batches = traced_batches(global_batch)
    with collection_paused(), cpu_by_default():
        if fold:
            with suppress(UnsupportedModelError, CannotFoldError):
                return _folded(subject, batches, call_of(kernels))
        traces = tuple(_trace(subject, batch, None) for batch in batches)
        return _assemble(traces, batches, call_of(kernels), refuse)


class _Subject:
    """What is traced: fake clones of the model and of a loss module, and fake inputs."""

    def __init__(
        self,
        model: nn.Module,
        inputs: tuple[Input, ...],
        loss_fn: LossFn | None,
        dtype: torch.dtype | None,
        *,
        unfuses_attention: bool,
        batch_norm: BatchNormMode,
        autocast_on: str | None,
        refuse: Refuse,
    ):
        self.inputs = inputs
        self.refuse = refuse
        self.unfuses_attention = unfuses_attention
        self.batch_norm: BatchNormMode = batch_norm
        self.autocast_on = autocast_on
        self._dtype = dtype
        self._mode = FakeTensorMode()
        self._model = FakeClones(model, self._mode, dtype)
        is_module = isinstance(loss_fn, nn.Module)
        self._loss_module = FakeClones(loss_fn, self._mode, dtype) if is_module else None
        self._loss_fn = loss_fn

    def program(self) -> LossProgram:
        """A fresh program, so that no trace sees what another did to its modules."""
        model = self._model.clone()
        if huggingface.is_pretrained(model):
            huggingface.disable_caches(model)
            huggingface.refuse_options(model, self.refuse)
        loss_fn = self._loss_module.clone() if self._loss_module else self._loss_fn
        return LossProgram(model, self.inputs, loss_fn)

    @property
    def memory(self) -> dict[int, str]:
        """Names of the given model's parameters by the identity of their memory."""
        return self._model.memory

    def run(self, program: LossProgram, tensors: tuple[torch.Tensor, ...]) -> None:
        """The forward outside of a trace, with all that it makes on the way fake as well."""
        with self._mode:
            program(*tensors)

    def tensors(self, batch: int) -> tuple[torch.Tensor, ...]:
        """Its inputs at one batch."""
        return tuple(i.fake(self._mode, batch, self._dtype) for i in self.inputs if i.is_tensor)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trace:
    graph: fx.Graph
    placeholders: dict[str, Placeholder]
    tied: tuple[tuple[str, ...], ...]
    modules: frozenset[str]


@dataclass(frozen=True, slots=True)
class _GivenUp:
    """Names of groups of blocks that turned out not to bear being folded, or withheld from."""

    folding: set[str] = field(default_factory=set)
    withholding: set[str] = field(default_factory=set)


def _folded(subject: _Subject, batches: Batches, call: Call) -> OpGraph:
    given_up = _GivenUp()
    while True:
        try:
            traces = tuple(_trace(subject, batch, given_up) for batch in batches)
            graph = _assemble(traces, batches, call, subject.refuse)
            _check_modules(graph, traces[0].modules)
            return graph
        except WithheldError as error:
            given_up.withholding.add(error.group)
        except CannotFoldError as error:
            if not error.group:
                raise
            given_up.folding.add(error.group)


def _check_modules(graph: OpGraph, modules: frozenset[str]) -> None:
    """Blocks that share a part confuse export about the paths of what it copies."""
    for node in graph.of_kind("call"):
        if node.module not in modules:
            raise CannotFoldError("", f"{node.name} lies in no module of the model")


def _trace(subject: _Subject, batch: int, given_up: _GivenUp | None) -> _Trace:
    """Exports at one batch; blocks are traced once unless ``given_up`` is None."""
    program = subject.program()
    tied = tied_names(program.model)
    memo = given_up and BlockMemo(program, given_up.folding, given_up.withholding)
    tensors = subject.tensors(batch)
    with changed_state(program) as changed, nullcontext() if memo is None else memo.active():
        exported = export_loss(program, tensors, subject.refuse, subject.batch_norm)
    refuse_counting(changed, lambda: subject.run(program, tensors), subject.refuse)
    if memo is not None:
        memo.withheld.put_back(exported)
    merge_tied(exported, tied)
    clean(
        exported.graph_module,
        unfuses_attention=subject.unfuses_attention,
        autocast_on=subject.autocast_on,
        refuse=subject.refuse,
    )
    if memo is not None:
        give_constants(exported, memo.traced)
        check_regions(exported.graph, memo.traced)
    return _Trace(
        graph=exported.graph,
        placeholders=read_placeholders(exported, subject.inputs, tied, subject.memory),
        tied=tied,
        modules=frozenset(
            own_path(path) for path, _ in program.named_modules(remove_duplicate=False)
        ),
    )


def _assemble(traces: tuple[_Trace, ...], batches: Batches, call: Call, refuse: Refuse) -> OpGraph:
    graphs = traces[0].graph, traces[1].graph
    mark_batch_dims(*graphs, batches)
    for graph in graphs:
        normalise_batch_means(graph)
    mark_batch_dims(*graphs, batches)
    regions = find_regions(graphs[0]), find_regions(graphs[1])
    runs = run_graph(graphs[0], regions[0], call), run_graph(graphs[1], regions[1], call)
    placeholders = traces[0].placeholders, traces[1].placeholders
    converter = Converter(graphs, batches, runs, placeholders, regions[0])
    drafts = converter.drafts()
    loss = converter.output()
    needed = live(drafts, loss)
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
        blocks=find_blocks(nodes, output),
        output=output,
        batch=batches[0],
        tied=tied,
        fingerprint=fingerprint(nodes, tied, output),
        unread_draws=tuple(names[name] for name in unread_draws(drafts, needed)),
    )
