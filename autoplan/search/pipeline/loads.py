"""What regions add up to: the load of one stage, made of the columns of its items."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autoplan.search.regions.column import Column


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """So many items with one column; ``is_block`` is false for parts of the root.

    ``is_tail`` is true for those of them that lie behind the last block of their stage.
    """

    column: Column
    count: int
    is_block: bool
    is_tail: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """What gathers its weights and reduces its gradients at once: a block, or a stage's root.

    ``kept_bytes``, of a block, are what its backward of a microbatch lets go of.
    """

    trained_elements: float
    frozen_elements: float
    count: int
    kept_bytes: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    """The parts of the root behind the last block of a stage, whose backward comes first.

    Attributes:
        kept_bytes, passing_bytes: as of ``Load``.
        trained_elements: whose gradients are there as long as the backward of the stage lasts.
    """

    kept_bytes: float
    passing_bytes: float
    trained_elements: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """One stage and one microbatch, on one rank.

    Attributes:
        forward_s, backward_input_s, backward_weight_s: compute, with messages over ``tp`` and
            ``cp``.
        forward_window_s, backward_window_s: compute without messages, which others can hide under.
        kept_bytes: from the forward to the backward.
        passing_bytes: of the region that holds most beside what is kept, the tail aside.
        tail: None where the stage ends with a block.
        root: the parts of the root as one unit, with parameters that several blocks read.
        blocks: units of blocks.
        waiting_elements: of the root, those that blocks read, whose gradients wait for it.
    """

    forward_s: float
    backward_input_s: float
    backward_weight_s: float
    forward_window_s: float
    backward_window_s: float
    kept_bytes: float
    passing_bytes: float
    root: Unit
    blocks: tuple[Unit, ...]
    tail: Tail | None = None
    waiting_elements: float = 0.0

    @property
    def backward_s(self) -> float:
        return self.backward_input_s + self.backward_weight_s

    @property
    def units(self) -> tuple[Unit, ...]:
        return (self.root, *self.blocks)


def load_of(
    placed: Iterable[Placed],
    *,
    forward_s: float = 0.0,
    kept_bytes: float = 0.0,
    twice_elements: float = 0.0,
    apart: Sequence[Unit] = (),
    split_element_s: float = 0.0,
) -> Load:
    """The load of a stage.

    Args:
        placed: its items.
        forward_s: of what every stage runs beside its items.
        kept_bytes: of what leaves the stage and lives until its gradient has come back.
        twice_elements: trained elements that columns of the root count once too often.
        apart: parameters that blocks read and no column counts.
        split_element_s: what taking gradients of weights apart adds for one trained element.
    """
    members = tuple(placed)
    columns = [(one.column, one.count) for one in members]
    forward_s += sum(column.forward_s * count for column, count in columns)
    backward_input_s = sum(column.backward_input_s * count for column, count in columns)
    backward_weight_s = sum(column.backward_weight_s * count for column, count in columns)
    sent_forward_s = sum(column.forward_messages_s * count for column, count in columns)
    sent_backward_s = sum(column.backward_messages_s * count for column, count in columns)
    root = [one for one in members if not one.is_block]
    waiting = sum(each.trained_elements for each in apart)
    trained = sum(column.trained_elements * count for column, count in columns)
    backward_weight_s += split_element_s * (trained - twice_elements + waiting)
    return Load(
        forward_s=forward_s,
        backward_input_s=backward_input_s,
        backward_weight_s=backward_weight_s,
        forward_window_s=forward_s - sent_forward_s,
        backward_window_s=backward_input_s + backward_weight_s - sent_backward_s,
        kept_bytes=kept_bytes + sum(column.kept_bytes * count for column, count in columns),
        passing_bytes=max(
            (one.column.passing_bytes for one in members if not one.is_tail), default=0.0
        ),
        tail=_tail([one.column for one in members if one.is_tail]),
        root=Unit(
            trained_elements=sum(one.count * one.column.trained_elements for one in root)
            - twice_elements
            + waiting,
            frozen_elements=sum(one.count * one.column.frozen_elements for one in root)
            + sum(each.frozen_elements for each in apart),
            count=1,
        ),
        blocks=tuple(
            Unit(
                trained_elements=one.column.trained_elements,
                frozen_elements=one.column.frozen_elements,
                count=one.count,
                kept_bytes=one.column.kept_bytes,
            )
            for one in members
            if one.is_block
        ),
        waiting_elements=waiting,
    )


def _tail(columns: Sequence[Column]) -> Tail | None:
    if not columns:
        return None
    return Tail(
        kept_bytes=sum(column.kept_bytes for column in columns),
        passing_bytes=max(column.passing_bytes for column in columns),
        trained_elements=sum(column.trained_elements for column in columns),
    )
