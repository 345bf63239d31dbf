"""The check of orders against a simulation of every rank, on right worlds and on broken ones."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.codegen.orders import (
    Collective,
    Event,
    Script,
    Transfer,
    World,
    check_orders,
    world_of,
)
from autoplan.errors import PlanError
from autoplan.runtime.pipeline import schedule_of
from cost_models.schedules import PipelineShape, ScheduleName

SCHEDULES: tuple[ScheduleName, ...] = (
    "gpipe", "1f1b", "interleaved_1f1b", "zero_bubble", "zbv"
)  # fmt: skip


def runs_to_its_end(world: World) -> bool:
    """Brute force: every rank is stepped on its own; an event waits for all its parties."""
    coordinates = {
        world.rank(pp, dp, tp): {"pp": pp, "dp": dp, "tp": tp}
        for pp, dp, tp in itertools.product(*map(range, (world.pp, world.dp, world.tp)))
    }
    events = {rank: list(world.scripts[world.script_of[rank]]) for rank in coordinates}
    place = dict.fromkeys(coordinates, 0)

    def head(rank: int) -> Event | None:
        return events[rank][place[rank]] if place[rank] < len(events[rank]) else None

    def parties(rank: int, event: Event) -> list[int]:
        own = coordinates[rank]
        axis = "pp" if isinstance(event, Transfer) else event.axis
        column = [
            other for other, c in coordinates.items()
            if all(c[name] == own[name] for name in c if name != axis)
        ]  # fmt: skip
        if isinstance(event, Transfer):
            return [other for other in column if coordinates[other]["pp"] == event.peer]
        members = event.places or range(getattr(world, axis))
        return [other for other in column if coordinates[other][axis] in members and other != rank]

    def meet(rank: int, event: Event, other: int) -> bool:
        if isinstance(event, Collective):
            return head(other) == event
        opposite = "receive" if event.kind == "send" else "send"
        return head(other) == Transfer(opposite, coordinates[rank]["pp"], event.what)

    moved = True
    while moved:
        moved = False
        for rank in coordinates:
            event = head(rank)
            if event is None:
                continue
            others = parties(rank, event)
            if all(meet(rank, event, other) for other in others):
                moved = True
                for party in {rank, *others}:
                    place[party] += 1
    return all(head(rank) is None for rank in coordinates)


def finds_fault(world: World) -> bool:
    try:
        check_orders(world)
    except PlanError:
        return True
    return False


def script(shape: PipelineShape, rank: int) -> Script:
    """What a rank does: torch's messages, a sum over tp in each compute, one over dp and pp."""
    events: list[Event] = [Collective("tp", "compare"), Collective("pp", "compare")]
    for action in schedule_of(shape, backward=True)[rank]:
        kind, stage, index = (
            action.computation_type.name, action.stage_index, action.microbatch_index
        )  # fmt: skip
        other = {"SEND_F": 1, "RECV_F": -1, "SEND_B": -1, "RECV_B": 1}.get(kind)
        if other is None:
            axis = "dp" if kind in ("UNSHARD", "REDUCE_GRAD") else "tp"
            events.append(Collective(axis, f"{kind} {stage} {index}"))
        else:
            what = f"{kind[-1]} {index} behind {min(stage, stage + other)}"
            way = "send" if kind.startswith("SEND") else "receive"
            events.append(Transfer(way, shape.rank_of(stage + other), what))
    ends = (0, shape.ranks - 1)
    if rank in ends:
        events.append(Collective("pp", "tied", ends))
    return Script((tuple(events),))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    schedule = draw(st.sampled_from(SCHEDULES))
    ranks = draw(st.integers(2, 3))
    per_rank = {"zbv": 2, "interleaved_1f1b": 2}.get(schedule, 1)
    shape = PipelineShape(
        schedule=schedule,
        ranks=ranks,
        stages=ranks * per_rank,
        microbatches=ranks * draw(st.integers(1, 2)),
    )
    return world_of(
        [script(shape, rank) for rank in range(ranks)],
        dp=draw(st.integers(1, 2)),
        tp=draw(st.integers(1, 2)),
        outermost=draw(st.sampled_from(["pp", "dp"])),
    )


def broken(world: World, ranks: list[int], at: int, kind: str) -> World:
    """The world in which these ranks, of one script, drop an event or swap it with the next."""
    number = world.script_of[ranks[0]]
    events = list(world.scripts[number])
    at %= len(events) - 1
    events[at : at + 2] = [events[at + 1]] if kind == "drop" else [events[at + 1], events[at]]
    script_of = list(world.script_of)
    for rank in ranks:
        script_of[rank] = len(world.scripts)
    scripts = (*world.scripts, Script((tuple(events),)))
    return replace(world, scripts=scripts, script_of=tuple(script_of))


@settings(deadline=None, max_examples=25)
@given(worlds())
def test_the_schedules_that_run_are_in_order(world: World) -> None:
    assert runs_to_its_end(world)
    assert not finds_fault(world)


@settings(deadline=None, max_examples=60)
@given(worlds(), st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from(["drop", "swap"]))
def test_a_fault_of_one_rank_is_found(world: World, rank: int, at: int, kind: str) -> None:
    found = broken(world, [rank % world.size], at, kind)
    if not runs_to_its_end(found):
        assert finds_fault(found)


@settings(deadline=None, max_examples=60)
@given(worlds(), st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from(["drop", "swap"]))
def test_a_fault_of_all_ranks_of_a_stage_is_found_and_nothing_else(
    world: World, place: int, at: int, kind: str
) -> None:
    ranks = [
        world.rank(place % world.pp, dp, tp) for dp in range(world.dp) for tp in range(world.tp)
    ]
    found = broken(world, ranks, at, kind)
    assert finds_fault(found) != runs_to_its_end(found)


def test_ranks_that_both_receive_first_are_named() -> None:
    scripts = [
        Script(
            ((Transfer("receive", 1 - own, f"x{1 - own}"), Transfer("send", 1 - own, f"x{own}")),)
        )
        for own in range(2)
    ]
    world = world_of(scripts, dp=2, tp=1, outermost="pp")
    assert not runs_to_its_end(world)
    with pytest.raises(PlanError, match="rank 0 waits to receive x1 from place 1; rank 2 waits"):
        check_orders(world)


def test_the_rank_and_the_event_that_differ_are_named() -> None:
    both = Script(((Collective("tp", "all_reduce"), Collective("tp", "all_gather")),))
    less = Script(((Collective("tp", "all_gather"),),))
    world = world_of([both], dp=1, tp=4, outermost="pp")
    world = replace(world, scripts=(both, less), script_of=(0, 0, 1, 0))
    with pytest.raises(PlanError, match=r"ranks 0 and 2 .* all_reduce over tp the other does all_"):
        check_orders(world)


def test_many_ranks_are_as_few() -> None:
    shape = PipelineShape(schedule="interleaved_1f1b", ranks=16, stages=64, microbatches=16)
    scripts = [script(shape, rank) for rank in range(16)]
    words = check_orders(world_of(scripts, dp=128, tp=8, outermost="pp"))
    assert words.startswith("16,384 ranks run 16 programs")
