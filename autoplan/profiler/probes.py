"""What is measured: one probe, one number.

A probe of time says what its seconds are of in the words of ``cost_models``, so that a fit compares
like with like.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from cost_models.algorithms import CollectiveKind
from cost_models.work import Work

Operator = Literal[
    "product",
    "attention",
    "add",
    "gelu",
    "layer_norm",
    "softmax",
    "adamw",
    "adamw tensors",
    "adamw pieces",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Compute:
    """Seconds of one operator on one device.

    Attributes:
        shape: (rows, inputs, outputs) of a product; (batch, heads, positions, head dimension) of
            attention; (rows, width) of the others; (elements,) of the optimizer's step on one
            tensor, (number, elements) of that on many, or on many of which a rank holds a piece.
        backward: its gradients instead.
        copies: how many run one after the other on tensors of their own, in one backward: what a
            backward as a whole costs to begin is no operator's.
        works: all copies as kernels of the cost model; empty for a value by itself.
    """

    operator: Operator
    shape: tuple[int, ...]
    dtype: str
    works: tuple[Work, ...]
    backward: bool = False
    copies: int = 1

    @property
    def name(self) -> str:
        backward = " backward" if self.backward else ""
        return f"{self.operator} {'x'.join(map(str, self.shape))} {self.dtype}{backward}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """Seconds of one collective of groups of ``ranks``, of which ``per_node`` share a node.

    ``nbytes`` is as in ``cost_models.collectives.collective_s``; ``in_use`` devices of each node
    take part at the same time, each in a group of its own.
    """

    kind: CollectiveKind
    nbytes: int
    ranks: int
    per_node: int
    in_use: int

    @property
    def name(self) -> str:
        return f"{self.kind} of {self.nbytes} bytes, {self.ranks} ranks, {self.in_use} at work"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharing:
    """The fraction of its rate that a device keeps when so many of the node compute.

    ``cores`` is the fraction of a core that each then has; what is measured is the rest: caches,
    memory and clocks that they share.
    """

    devices: int
    cores: float

    @property
    def name(self) -> str:
        return f"{self.devices} devices at work"


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlap:
    """The fraction of a hidden all-reduce over so many ranks that is saved beside compute."""

    nbytes: int
    ranks: int

    @property
    def name(self) -> str:
        return f"all_reduce of {self.nbytes} bytes, {self.ranks} ranks, beside products"


Around = Literal["pieces", "messages", "units forward", "units", "gradients"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HostWork:
    """Seconds that the host's thread works in a program of two ranks, beside the same on one.

    Of each of ``number``: uses of pieces of parameters, forward and backward; messages of a program
    over ``tp``; units of so many bytes that FSDP2 gathers in a forward; units that it gathers in a
    forward and a backward, and whose gradients it scatters; or parameters whose gradients are taken
    apart from the backward.
    """

    around: Around
    number: int
    nbytes: int

    @property
    def name(self) -> str:
        return f"host around {self.around} of {self.nbytes} bytes"


@dataclass(frozen=True, kw_only=True, slots=True)
class HostCopy:
    """Seconds of a copy between pinned memory of the host and the device."""

    nbytes: int
    to_device: bool

    @property
    def name(self) -> str:
        return f"copy of {self.nbytes} bytes {'to' if self.to_device else 'from'} the device"


@dataclass(frozen=True, kw_only=True, slots=True)
class Idle:
    """The fraction of its time that a process which computes is let run: 1 on an idle machine.

    So many devices of the node compute at once, as many as there are cores: one alone would not see
    what runs on the other cores.
    """

    name: str
    devices: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Workspace:
    """Bytes that a process holds on its device before it has tensors."""

    name: str = "context and libraries"


Probe: TypeAlias = Compute | Exchange | Sharing | Overlap | HostWork | HostCopy | Idle | Workspace


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A probe and its number: seconds, a fraction or bytes."""

    probe: Probe
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """A probe, or a value of the profile, that has no number, and why."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurements:
    """All that was measured, in order; ``interrupted`` when it was ended before its time."""

    measured: tuple[Measured, ...]
    refused: tuple[Refused, ...]
    interrupted: bool = False
