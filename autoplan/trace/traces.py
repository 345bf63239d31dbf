"""Exports of one model at two batches, repeated blocks traced once where that gives the same.

The given model is never changed, run or copied: clones of it with fake tensors are exported.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field

import torch
from torch import fx, nn

from autoplan.errors import UnsupportedModelError
from autoplan.job import BatchNormMode
from autoplan.trace import huggingface
from autoplan.trace.batch_sizes import Batches, mark_batch_dims
from autoplan.trace.clean import clean
from autoplan.trace.clone import FakeClones
from autoplan.trace.collection import collection_paused
from autoplan.trace.convert import Converter
from autoplan.trace.counting import changed_state, refuse_counting
from autoplan.trace.drafts import Draft
from autoplan.trace.graph import OpGraph, Ref
from autoplan.trace.guards import cpu_by_default
from autoplan.trace.inputs import Input
from autoplan.trace.kernels import Call
from autoplan.trace.normalise import normalise_batch_means
from autoplan.trace.placeholders import (
    Placeholder,
    merge_tied,
    own_path,
    read_placeholders,
    tied_names,
)
from autoplan.trace.program import LossFn, LossProgram, export_loss
from autoplan.trace.refusals import Refuse
from autoplan.trace.regions import check_regions, find_regions
from autoplan.trace.repeat_constants import give_constants
from autoplan.trace.repeat_errors import CannotFoldError, WithheldError
from autoplan.trace.repeat_memo import BlockMemo
from autoplan.trace.saved import run_graph
from autoplan.trace.shares import share_what_is_added
from autoplan.trace.torch_private import FakeTensorMode


class Subject:
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
        kind: type[LossProgram] = LossProgram,
    ):
        self.inputs = inputs
        self.refuse = refuse
        self.unfuses_attention = unfuses_attention
        self.batch_norm: BatchNormMode = batch_norm
        self.autocast_on = autocast_on
        self._kind = kind
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
        return self._kind(model, self.inputs, loss_fn)

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
class Trace:
    """One export, and the program that was exported."""

    program: LossProgram
    graph: fx.Graph
    placeholders: dict[str, Placeholder]
    tied: tuple[tuple[str, ...], ...]
    modules: frozenset[str]


Traces = tuple[Trace, Trace]
Assemble = Callable[[Traces], OpGraph]


@dataclass(frozen=True, slots=True)
class _GivenUp:
    """Names of groups of blocks that turned out not to bear being folded, or withheld from."""

    folding: set[str] = field(default_factory=set)
    withholding: set[str] = field(default_factory=set)


def traced(
    subject: Subject, batches: Batches, assemble: Assemble, *, fold: bool = True
) -> tuple[OpGraph, Traces]:
    """The traces at two batches, and the graph made of them.

    Raises:
        UnsupportedModelError: whatever cannot be traced faithfully, in one line.
    """
    with collection_paused(), cpu_by_default():
        if fold:
            with suppress(UnsupportedModelError, CannotFoldError):
                return folded(subject, batches, assemble)
        traces = _trace(subject, batches[0], None), _trace(subject, batches[1], None)
        return assemble(traces), traces


def folded(subject: Subject, batches: Batches, assemble: Assemble) -> tuple[OpGraph, Traces]:
    """The same, with each kind of repeated block traced once.

    Raises:
        CannotFoldError: where the result might be another.
    """
    given_up = _GivenUp()
    while True:
        try:
            traces = _trace(subject, batches[0], given_up), _trace(subject, batches[1], given_up)
            graph = assemble(traces)
            _check_modules(graph, traces[0].modules)
            return graph, traces
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


def _trace(subject: Subject, batch: int, given_up: _GivenUp | None) -> Trace:
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
    return Trace(
        program=program,
        graph=exported.graph,
        placeholders=read_placeholders(exported, subject.inputs, tied, subject.memory),
        tied=tied,
        modules=frozenset(
            own_path(path) for path, _ in program.named_modules(remove_duplicate=False)
        ),
    )


def drafted(traces: Traces, batches: Batches, call: Call) -> tuple[list[Draft], tuple[Ref, ...]]:
    """The nodes of two traces read side by side, and what the program returns.

    Args:
        call: how operators run, as on a GPU or as on a CPU.
    """
    graphs = traces[0].graph, traces[1].graph
    mark_batch_dims(*graphs, batches)
    for graph in graphs:
        normalise_batch_means(graph)
    mark_batch_dims(*graphs, batches)
    changed = [share_what_is_added(graph) for graph in graphs]
    if any(changed):
        mark_batch_dims(*graphs, batches)
    regions = find_regions(graphs[0]), find_regions(graphs[1])
    runs = run_graph(graphs[0], regions[0], call), run_graph(graphs[1], regions[1], call)
    placeholders = traces[0].placeholders, traces[1].placeholders
    converter = Converter(graphs, batches, runs, placeholders, regions[0])
    return converter.drafts(), converter.results()
