"""What torch makes of a priced order: the same order, and messages that meet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.runtime.pipeline import schedule_of
from cost_models.schedules import PipelineShape, rank_actions

NEXT = {"SEND_F": 1, "RECV_F": -1, "SEND_B": -1, "RECV_B": 1}
"""Where the other stage of a message lies."""


@st.composite
def shapes(draw) -> PipelineShape:
    schedule = draw(st.sampled_from(["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble", "zbv"]))
    ranks, rounds = draw(st.integers(2, 5)), draw(st.integers(1, 4))
    per_rank = 2 if schedule == "zbv" else 1
    if schedule in ("interleaved_1f1b", "zero_bubble"):
        per_rank = draw(st.integers(1, 3))
        microbatches = draw(st.sampled_from([ranks * rounds, *range(1, ranks)]))
    else:
        microbatches = draw(st.integers(1, 9))
    return PipelineShape(
        schedule=schedule, ranks=ranks, stages=ranks * per_rank, microbatches=microbatches
    )


def messages(
    shape: PipelineShape, actions: list[Any], word: str, peer: int
) -> list[tuple[str, int, int]]:
    """Messages of one rank with a peer, in order, by what is sent and the sending stage."""
    found = []
    for action in actions:
        name = action.computation_type.name
        if not name.startswith(word):
            continue
        other = action.stage_index + NEXT[name]
        if shape.rank_of(other) == peer:
            sender = action.stage_index if word == "SEND" else other
            found.append((name[-1], sender, action.microbatch_index))
    return found


@settings(deadline=None, max_examples=60)
@given(shapes(), st.booleans())
def test_ranks_send_in_the_order_in_which_peers_await(shape, backward):
    order: Mapping[int, list[Any]] = schedule_of(shape, backward=backward)
    for sender in range(shape.ranks):
        for receiver in range(shape.ranks):
            sent = messages(shape, order[sender], "SEND", receiver)
            awaited = messages(shape, order[receiver], "RECV", sender)
            assert sent == awaited


@settings(deadline=None, max_examples=60)
@given(shapes())
def test_ranks_compute_in_the_priced_order(shape):
    names = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
    order = schedule_of(shape, backward=True)
    for rank in range(shape.ranks):
        run = [
            (names[a.computation_type.name], a.stage_index, a.microbatch_index)
            for a in order[rank]
            if a.computation_type.name in names
        ]
        assert run == [tuple(action) for action in rank_actions(shape, rank)]
