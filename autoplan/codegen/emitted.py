"""What codegen hands to the runtime: the source of the sharded module, and how to feed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
        argument: name of the emitted argument.
        meta: global; ``batch_dims`` (at most one) is split evenly over dp, then over microbatches.
            An input without one is the same for every rank and microbatch.
    """

    target: str
    argument: str
    meta: TensorMeta


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """One value of ``counts``: computed from inputs alone, summed over the batch before forward."""

    node: str
    meta: TensorMeta


@dataclass(frozen=True, kw_only=True, slots=True)
class Emitted:
    """The program of every rank.

    The root class has ``forward(*inputs, counts)`` and ``count(*inputs)``, with ``inputs`` one
    microbatch of one dp rank, in the order of ``inputs``. ``count`` returns a tuple, one tensor
    per entry of ``counts``: this microbatch's term. ``forward`` takes the same tuple summed over
    all microbatches and dp ranks, and returns the microbatch's term of the global loss: the
    global loss is the sum over dp ranks and microbatches, and is the same on every tp rank.
    Gradients follow: sum over microbatches and dp. They are right on every tp rank as they are.

    Attributes:
        source: Python text; ``tp`` (an ``AxisGroup``) is bound when it is run.
        root_class: name of the class of the whole model.
        block_classes: class name of each block instance, by module path, in execution order.
        unit_paths: block instances that alone read the parameters below their path, in execution
            order: each can be an FSDP unit. All other parameters belong to the root unit.
        parameters, buffers: by original name (the first of a tied group), in the model's order.
        dp, num_microbatches, tp: degrees that the shapes in the source were computed for.
    """

    source: str
    root_class: str
    block_classes: Mapping[str, str]
    unit_paths: tuple[str, ...]
    parameters: Mapping[str, StoredTensor]
    buffers: Mapping[str, StoredTensor]
    inputs: tuple[BatchInput, ...]
    counts: tuple[Count, ...]
    dp: int
    num_microbatches: int
    tp: int
