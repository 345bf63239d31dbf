"""What codegen hands to the runtime: the source of the sharded module, and how to feed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoplan.codegen.messages import StageMessages
from autoplan.codegen.program import Boundary
from autoplan.sharding.placement import Placement
from autoplan.trace.graph import TensorMeta


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTensor:
    """A parameter or buffer: its global shape and dtype, and its placement on ``tp``."""

    meta: TensorMeta
    placement: Placement


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchInput:
    """An argument of ``forward``.

    Attributes:
        target: the name of the model's own argument; ``targets`` of a loss function's.
        meta: global; ``batch_dims`` (at most one) is split evenly over dp, then over microbatches.
            An input without one is the same for every rank and microbatch.
    """

    target: str
    meta: TensorMeta


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """One value of ``counts``: computed from inputs alone, summed over the batch before forward."""

    node: str
    meta: TensorMeta


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """A tensor that an evaluation returns for one microbatch.

    Attributes:
        batch_dim: along which samples lie; None: the same for all samples.
        parts: of that dim, one after the other, each of which holds all samples.
    """

    shape: tuple[int, ...]
    dtype: str
    batch_dim: int | None
    parts: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class EmittedStage:
    """A pipeline stage, or the whole model where there is no pipeline.

    Attributes:
        root_class: name of its class.
        rank: the rank of the ``pp`` axis that runs it.
        block_classes: class name of each of its block instances, by module path, in execution
            order.
        unit_paths: block instances that alone read the parameters below their path, in execution
            order: each can be an FSDP unit. All other parameters belong to the root unit.
        parameters, buffers: names of what it reads, in the model's order; those that several stages
            read are in each.
        inputs: positions in ``Emitted.inputs`` of those that its functions take.
        receives, sends: the tensors that cross from the stage before and to the stage behind.
        draws_before: number of the first dropout of each of its block instances that has one.
        takes_draws: whether ``forward`` takes ``draws`` (``runtime.random.Draws``, or None in
            evaluation), since the stage has a dropout.
        messages: what the program sends for a microbatch.
        averaged: of ``buffers``, those that every dp rank moves by its own rows in a step, and that
            are then averaged over dp.
    """

    root_class: str
    rank: int
    block_classes: Mapping[str, str]
    unit_paths: tuple[str, ...]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    inputs: tuple[int, ...]
    receives: tuple[Boundary, ...] = ()
    sends: tuple[Boundary, ...] = ()
    draws_before: Mapping[str, int] = field(default_factory=dict)
    takes_draws: bool = False
    messages: StageMessages = field(default_factory=StageMessages)
    averaged: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Emitted:
    """The program of every rank.

    A stage's class has ``forward(*received, *inputs, counts)`` and ``count(*inputs)``, with its
    ``inputs`` of one microbatch of one dp rank. ``count`` returns a tuple: this microbatch's terms
    of the values that the stage needs counted. ``forward`` takes the same tuple summed over all
    microbatches and dp ranks. A stage returns what it sends: a tensor, or a tuple of several. The
    last stage returns the microbatch's term of the global loss: the global loss is the sum over dp
    ranks and microbatches, and is the same on every tp rank. Gradients follow: sum over
    microbatches, dp, and the stages that read a parameter. They are right on every tp rank as they
    are.

    A program of the model without its loss has ``evaluate(*received, *inputs)`` in place of both,
    of stages and blocks, and the last stage returns ``outputs``.

    Attributes:
        source: Python text; ``tp`` (an ``AxisGroup``) is bound when it is run.
        stages: in the order of the model.
        parameters, buffers: by original name (the first of a tied group), in the model's order.
        counts: all values that are counted ahead.
        loss_dtype: of the loss.
        dp, num_microbatches, tp: degrees that the shapes in the source were computed for.
        outputs: of a model without its loss.
        whole_batch: why it takes the samples that it is written for, all at once, if it does.
    """

    source: str
    stages: tuple[EmittedStage, ...]
    parameters: Mapping[str, StoredTensor]
    buffers: Mapping[str, StoredTensor]
    inputs: tuple[BatchInput, ...]
    counts: tuple[Count, ...]
    loss_dtype: str
    dp: int
    num_microbatches: int
    tp: int
    outputs: tuple[Output, ...] = ()
    whole_batch: str | None = None
