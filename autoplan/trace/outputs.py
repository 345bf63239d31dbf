"""What a model returns without its loss, traced for evaluation.

The model is called as the caller of an evaluation calls it: without labels, or at another length.
Only the tensors among its outputs are results of the graph; ``Structure`` puts them back into what
the model returned. Blocks are those of the loss's graph, so that a program of this one can run on
the same modules.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from autoplan.errors import UnsupportedModelError
from autoplan.job import BatchNormMode
from autoplan.trace.batch_sizes import Batches, traced_batches
from autoplan.trace.blocks import blocks_at
from autoplan.trace.clone import FakeClones
from autoplan.trace.draws import refuse_untagged_draws
from autoplan.trace.evaluation import in_evaluation
from autoplan.trace.graph import OpGraph, Ref
from autoplan.trace.inputs import (
    CONSTANTS,
    BatchDims,
    ExampleInputs,
    positional_names,
    read_inputs,
)
from autoplan.trace.kernels import gpu_call
from autoplan.trace.naming import live
from autoplan.trace.naming import named as written
from autoplan.trace.program import LossProgram
from autoplan.trace.refusals import refuse_at_once
from autoplan.trace.torch_private import FakeTensorMode, TreeSpec, tree_flatten, tree_unflatten
from autoplan.trace.traces import Subject, Trace, Traces, drafted, traced


@dataclass(frozen=True, slots=True)
class Structure:
    """Containers and plain values that a model returned; its tensors are left out.

    Attributes:
        leaves: what is in the containers, ``Tensor`` in the place of every tensor.
    """

    spec: TreeSpec
    leaves: tuple[Any, ...]

    def filled(self, tensors: Sequence[Tensor]) -> Any:
        """The same containers, made anew, with these tensors."""
        given = iter(tensors)
        leaves = [next(given) if leaf is Tensor else leaf for leaf in self.leaves]
        return tree_unflatten(leaves, self.spec)


class OutputsProgram(LossProgram):
    """The model as a function of its input tensors to all tensors that it returns."""

    structure: Structure | None = None

    def result(self, outputs: Any, targets: Any) -> tuple[Tensor, ...]:
        leaves, spec = tree_flatten(outputs)
        for leaf in leaves:
            if not isinstance(leaf, (Tensor, *CONSTANTS)):
                raise UnsupportedModelError(
                    f"the model returns a {type(leaf).__name__}, in which no tensors are found; "
                    "return a tensor, tuple, list or dict, or register a dataclass by "
                    "torch.export.register_dataclass"
                )
        is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]
        kept = (Tensor if tensor else leaf for leaf, tensor in zip(leaves, is_tensor, strict=True))
        self.structure = Structure(spec, tuple(kept))
        tensors = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
        if not tensors:
            raise UnsupportedModelError("the model returns no tensors for these inputs")
        return tensors


class ModelForward:
    """A model kept without its weights, to be traced when its outputs are asked for.

    Args:
        dtype: as for ``capture.capture``.
        constants: plain values among the example inputs, by name.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        dtype: torch.dtype | None,
        constants: Mapping[str, Any] | None = None,
        batch_norm: BatchNormMode = "sync",
        autocast_on: str | None = None,
    ) -> None:
        self._model = FakeClones(model, FakeTensorMode(), None).clone()
        self._dtype = dtype
        self._constants = dict(constants or {})
        self._batch_norm: BatchNormMode = batch_norm
        self._autocast_on = autocast_on

    def positional(self, count: int) -> Sequence[str]:
        """Names of the first arguments of the model's ``forward``, fewer if it has fewer."""
        return positional_names(self._model, count)

    def takes(self, name: str, value: Any) -> bool:
        """Whether the model's ``forward`` has an argument of this name.

        Plain values may be among those that it takes without naming them.
        """
        named = inspect.signature(self._model.forward).parameters
        takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in named.values())
        return name in named or (takes_all and not isinstance(value, Tensor))

    def defaults_to_none(self, name: str) -> bool:
        """Whether ``None`` for an argument is the same as none; it is for a loss's targets."""
        argument = inspect.signature(self._model.forward).parameters.get(name)
        return argument is None or argument.default is None

    def capture(
        self,
        inputs: Mapping[str, Any],
        *,
        batch_dims: BatchDims,
        trains: bool,
        global_batch: int,
        paths: Collection[str],
        unfuses_attention: bool,
    ) -> tuple[OpGraph, Structure]:
        """Traces one call of the model.

        Args:
            inputs: tensors, of which only the batch may be another, and plain values.
            batch_dims: of all tensors.
            trains: whether the model is in the modes that it was given in, or in eval mode.
            paths: of the modules that are to be blocks.

        Returns:
            The graph at batch 2, and what the model returned.

        Raises:
            UnsupportedModelError: whatever cannot be traced faithfully.
        """
        named = self._constants | dict(inputs)
        with nullcontext() if trains else in_evaluation(self._model):
            subject = Subject(
                self._model,
                read_inputs(
                    self._model, self._arguments(named), with_targets=False, batch_dims=batch_dims
                ),
                None,
                self._dtype,
                unfuses_attention=unfuses_attention,
                batch_norm=self._batch_norm,
                autocast_on=self._autocast_on,
                refuse=refuse_at_once,
                kind=OutputsProgram,
            )
            batches = traced_batches(global_batch)
            graph, traces = traced(
                subject, batches, partial(_assemble, batches=batches, paths=paths)
            )
        return graph, _structure(traces, batches)

    def _arguments(self, named: Mapping[str, Any]) -> ExampleInputs:
        """By position where these are the first arguments; ``forward`` may take no others."""
        first = positional_names(self._model, len(named))
        if set(first) == set(named):
            return tuple(named[name] for name in first)
        return named


def _assemble(traces: Traces, *, batches: Batches, paths: Collection[str]) -> OpGraph:
    drafts, results = drafted(traces, batches, gpu_call)
    nodes, names = written(live(drafts, results))
    nodes = tuple(replace(node, saved=()) for node in nodes)
    refuse_untagged_draws(nodes, batches[0], refuse_at_once)
    outputs = tuple(Ref(names[ref.node], ref.index) for ref in results)
    return OpGraph(
        nodes=nodes,
        blocks=blocks_at(nodes, outputs, paths),
        output=outputs[0],
        batch=batches[0],
        tied=traces[0].tied,
        outputs=outputs,
    )


def _structure(traces: Traces, batches: Batches) -> Structure:
    first, other = (_returned(trace) for trace in traces)
    if repr(first.leaves) != repr(other.leaves) or first.spec != other.spec:
        one, two = batches
        raise UnsupportedModelError(
            f"what the model returns beside tensors differs at batch {one} and {two}; return "
            "tensors alone"
        )
    return first


def _returned(trace: Trace) -> Structure:
    assert isinstance(trace.program, OutputsProgram)
    assert trace.program.structure is not None
    return trace.program.structure
