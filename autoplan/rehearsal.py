"""What each rank of a plan would hold and do in a step, without running any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A parameter on one rank: what its optimizer steps there."""

    name: str
    shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    dtype: str
    nbytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What the ranks at one place of the pipeline do; they differ in their rows and shards alone.

    Attributes:
        place: on ``pp``.
        ranks: of the world, those at this place; their number is ``dp x tp``.
        stages: numbers of the stages it runs.
        blocks: paths of their blocks, in order.
        parameters: of the first of these ranks.
        meetings: how many collectives and messages of each kind a step has.
    """

    place: int
    ranks: tuple[int, ...]
    stages: tuple[int, ...]
    blocks: tuple[str, ...]
    parameters: tuple[Held, ...]
    meetings: Mapping[str, int]

    @property
    def nbytes(self) -> int:
        """Of the parameters, as they are stored."""
        return sum(held.nbytes for held in self.parameters)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsal:
    """All ranks.

    Attributes:
        mesh: sizes of the axes: ``pp``, ``dp``, ``tp``.
        orders: what the check of the order of messages looked at.
    """

    mesh: Mapping[str, int]
    orders: str
    parts: tuple[Part, ...]
