"""What a plan file tells beside decisions and cost: how blocks run, which modules fill a device,
how speed follows the nodes, and what the largest is that fits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

MOST_FLOW_OPERATORS = 160
"""Of a block whose flow can still be read; that of others is not told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorRead:
    """A tensor that an operator reads, and the message over ``tp`` that brings it there.

    Attributes:
        source: number of the operator in its flow that made it; below zero, ``-1 - k`` stands for
            the block's k-th input; None for a parameter, which is named only if it is sent.
        forward: the collective that brings the tensor, empty for none.
        backward: the one that brings its gradient back, likewise.
        nbytes: of the whole tensor, for one microbatch.
    """

    source: int | None
    forward: str = ""
    backward: str = ""
    nbytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowOperator:
    """A call of a block; one that only renames memory is left out where nothing is sent for it.

    Attributes:
        name: of the call, relative to the block, as in ``RegionPlan.operators``.
        placement: of its first output on ``tp``.
        reads: what it reads, parameters aside that lie where they are read.
        flops: of its forward for one microbatch, all ranks of ``tp`` together; only products,
            convolutions and attention have some.
        recomputed: whether it runs again in the backward.
    """

    name: str
    placement: str
    reads: tuple[TensorRead, ...]
    flops: int = 0
    recomputed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockFlow:
    """How the blocks of one region run: their operators, each behind what it reads.

    Attributes:
        block: path of the region's first block.
        outputs: what leaves the block, as the next ones want it.
    """

    block: str
    operators: tuple[FlowOperator, ...]
    outputs: tuple[TensorRead, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleMemory:
    """Bytes that a module takes on a device of the fullest rank, in all blocks of a kind there.

    Attributes:
        kind: the block kind that the module is in; empty outside blocks.
        module: its path, relative to the kind; empty for the block itself.
        copies: blocks of the kind on the rank.
        parameters, gradients, optimizer_state, gathered_parameters: of its own parameters, as in
            ``MemoryBreakdown``; what is gathered for a moment only is not among them.
        activations: that it makes and that stay for the backward, of all microbatches that are
            held when the rank holds most; what enters a block belongs to the block.
    """

    kind: str
    module: str
    copies: int
    parameters: int
    gradients: int
    optimizer_state: int
    gathered_parameters: int
    activations: int

    @property
    def total(self) -> int:
        return (
            self.parameters
            + self.gradients
            + self.optimizer_state
            + self.gathered_parameters
            + self.activations
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingPoint:
    """The plan of the same training on another number of nodes.

    ``samples_per_s`` and ``step_s`` are None where there is no plan; ``reason`` says why.
    """

    nodes: int
    devices: int
    global_batch: int
    samples_per_s: float | None
    step_s: float | None
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeLimit:
    """The largest size that a plan was found for.

    Attributes:
        does_not_fit: the smallest size that was seen not to; None where none was tried.
        peak_memory_bytes: of that plan.
    """

    value: int
    does_not_fit: int | None
    peak_memory_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """What of the same training was planned beside it, as far as it was asked for.

    Attributes:
        scaling: ascending in nodes.
        largest_microbatch: on the mesh of the plan, whatever ZeRO stage and recomputing it takes.
        longest_sequence: on as many devices, one sample at a time, whatever the mesh.
    """

    scaling: tuple[ScalingPoint, ...] = ()
    largest_microbatch: SizeLimit | None = None
    longest_sequence: SizeLimit | None = None

    def scaling_of(self, point: ScalingPoint) -> float | None:
        """As ``scaling_among`` the points."""
        return scaling_among(self.scaling, point)


class Rate(Protocol):
    """A training's speed on some devices; None where it has no plan."""

    @property
    def devices(self) -> int: ...

    @property
    def samples_per_s(self) -> float | None: ...


def scaling_among(points: Iterable[Rate], point: Rate) -> float | None:
    """``T_n / (n T_1)``: a device's samples per second at a point over those at the first that has
    a plan; None where there is none."""
    first = next((each for each in points if each.samples_per_s), None)
    if first is None or first.samples_per_s is None or point.samples_per_s is None:
        return None
    return (point.samples_per_s / point.devices) / (first.samples_per_s / first.devices)
