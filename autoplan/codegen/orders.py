"""Whether all ranks of a plan meet in their collectives and messages, without running any.

Each rank runs a *script*: its collectives by mesh axis, and what it sends to and receives from
other ranks of ``pp``. Checked is the strictest reading: every event waits for all its parties.

A plan has as many scripts as ``pp`` has ranks, whatever ``dp`` and ``tp`` are: ranks that differ in
these alone run one text. It is therefore enough that

1. ranks with the same place on ``pp`` have the same script, and
2. one column, the ranks of ``pp`` with all other coordinates fixed, runs to its end, where what it
   does with ranks outside (on ``dp`` and ``tp``) waits for nobody.

For then the events of the column can be put in an order that it follows, and all columns follow it
in lockstep: parties of a collective on ``dp`` or ``tp`` have the same script, so they come to it at
the same point. Conversely a column that stops is never freed by another one in the same state. The
cost is that of one column, of 16 ranks in a world of 16,384.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from autoplan.errors import PlanError
from autoplan.plurals import counted


@dataclass(frozen=True, slots=True)
class Collective:
    """A meeting of the ranks that differ in one axis alone.

    Attributes:
        axis: ``pp``, ``dp`` or ``tp``.
        what: is done there, and on what.
        places: on the axis, of those that take part; all when empty.
    """

    axis: Literal["pp", "dp", "tp"]
    what: str
    places: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Transfer:
    """A message to or from the rank at another place on ``pp``."""

    kind: Literal["send", "receive"]
    peer: int
    what: str


Event = Collective | Transfer
Segment = tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """The events of a rank in a step; segments that several share are the same object."""

    segments: tuple[Segment, ...]

    def __iter__(self) -> Iterator[Event]:
        for segment in self.segments:
            yield from segment


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """All ranks.

    Attributes:
        outermost: as of ``MeshPlan``.
        scripts: the different ones.
        script_of: number of the script of every rank.
    """

    pp: int
    dp: int
    tp: int
    outermost: Literal["pp", "dp"]
    scripts: tuple[Script, ...]
    script_of: tuple[int, ...]

    @property
    def size(self) -> int:
        return self.pp * self.dp * self.tp

    def rank(self, pp: int, dp: int, tp: int) -> int:
        outer = pp * self.dp + dp if self.outermost == "pp" else dp * self.pp + pp
        return outer * self.tp + tp


def world_of(
    scripts: Sequence[Script], *, dp: int, tp: int, outermost: Literal["pp", "dp"]
) -> World:
    """The world in which the ranks at each place on ``pp`` have one script."""
    pp = len(scripts)
    places = range(pp)
    order = (
        (p for p in places for _ in range(dp))
        if outermost == "pp"
        else (p for _ in range(dp) for p in places)
    )
    script_of = tuple(place for place in order for _ in range(tp))
    return World(
        pp=pp, dp=dp, tp=tp, outermost=outermost, scripts=tuple(scripts), script_of=script_of
    )


def check_orders(world: World) -> str:
    """What was checked, in words.

    Raises:
        PlanError: naming two ranks that would wait for each other, or the event in which they
            differ.
    """
    for place in range(world.pp):
        _check_alike(world, place)
    column = [world.scripts[world.script_of[world.rank(p, 0, 0)]] for p in range(world.pp)]
    _check_column(world, column)
    counts = Counter(type(event) for script in column for event in script)
    programs = len(set(column))
    words = f"{world.size:,} ranks run {counted(programs, 'program')}"
    kinds = f"{counts[Collective]:,} collectives and {counts[Transfer]:,} messages"
    return f"{words} with {kinds}, in one order; no rank waits in vain"


def _check_alike(world: World, place: int) -> None:
    """Ranks that differ in dp and tp alone have one script."""
    first = world.rank(place, 0, 0)
    model = world.scripts[world.script_of[first]]
    for dp in range(world.dp):
        for tp in range(world.tp):
            rank = world.rank(place, dp, tp)
            number = world.script_of[rank]
            if number == world.script_of[first] or world.scripts[number] == model:
                continue
            ours, theirs = _first_difference(model, world.scripts[number])
            raise PlanError(
                f"ranks {first} and {rank} run the same stages, but where one does {ours} the "
                f"other does {theirs}: they would wait for each other"
            )


def _first_difference(one: Script, other: Script) -> tuple[str, str]:
    first, second = list(one), list(other)
    for a, b in zip(first, second, strict=False):
        if a != b:
            return _words(a), _words(b)
    rest = max(first, second, key=len)[min(len(first), len(second))]
    return (_words(rest), "nothing") if len(first) > len(second) else ("nothing", _words(rest))


def _check_column(world: World, column: Sequence[Script]) -> None:
    waiting = [_Waiting(script) for script in column]
    places = set(range(len(column)))
    while places:
        place = places.pop()
        head = waiting[place].head
        if head is None:
            continue
        others = _parties(place, head, len(column))
        if all(_meets(waiting[other].head, head, place) for other in others):
            for party in {place, *others}:
                waiting[party].advance()
                places.add(party)
    stuck = [place for place, events in enumerate(waiting) if events.head is not None]
    if stuck:
        shown = "; ".join(
            f"rank {world.rank(place, 0, 0)} waits to {_words(waiting[place].head)}"
            for place in stuck[:3]
        )
        raise PlanError(f"ranks of the pipeline would wait for each other: {shown}")


class _Waiting:
    """The events of a rank on ``pp``, the first of which it waits in."""

    def __init__(self, script: Script) -> None:
        self._events = (event for event in script if _is_in_column(event))
        self.head: Event | None = next(self._events, None)

    def advance(self) -> None:
        self.head = next(self._events, None)


def _is_in_column(event: Event) -> bool:
    return isinstance(event, Transfer) or event.axis == "pp"


def _parties(place: int, event: Event, pp: int) -> list[int]:
    """The other places that an event waits for."""
    if isinstance(event, Transfer):
        return [event.peer]
    return [other for other in event.places or range(pp) if other != place]


def _meets(other: Event | None, event: Event, place: int) -> bool:
    """Whether what another rank waits in is the other side of an event of the rank at ``place``."""
    if isinstance(event, Collective):
        return other == event
    return (
        isinstance(other, Transfer)
        and other.kind != event.kind
        and other.peer == place
        and other.what == event.what
    )


def _words(event: Event | None) -> str:
    if event is None:
        return "nothing"
    if isinstance(event, Transfer):
        way = "to" if event.kind == "send" else "from"
        return f"{event.kind} {event.what} {way} place {event.peer}"
    return f"{event.what} over {event.axis}"
