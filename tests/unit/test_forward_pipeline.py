"""Evaluations: orders of a pipeline's forwards and messages, and samples cut and joined."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.codegen.emitted import Output
from autoplan.errors import PlanError
from autoplan.runtime.forward_pipeline import forward_actions
from autoplan.runtime.mesh import RankMesh
from autoplan.runtime.rows import Rows, rows_of
from autoplan.runtime.torch_private import PipelineActionKind as Kind

ALONE = RankMesh(dp=1, tp=1, dp_rank=0, tp_rank=0, device=torch.device("cpu"), device_mesh=None)


@st.composite
def placed_stages(draw: st.DrawFn) -> list[int]:
    """Ranks of stages, in turn or in a V."""
    ranks = draw(st.integers(2, 4))
    if draw(st.booleans()):
        return [*range(ranks), *reversed(range(ranks))]
    return list(range(ranks)) * draw(st.integers(1, 3))


@settings(deadline=None, max_examples=40)
@given(placed_stages(), st.integers(1, 9))
def test_ranks_run_every_forward_without_waiting_for_each_other(
    rank_of: Sequence[int], microbatches: int
) -> None:
    """Plays the orders with sends that meet their receives: none is left over, none waits."""
    left = {rank: list(own) for rank, own in forward_actions(rank_of, microbatches).items()}
    done: set[tuple[int, int]] = set()
    arrived: set[tuple[int, int]] = set()

    def name(rank: int) -> tuple[object, int, int] | None:
        if not left[rank]:
            return None
        action = left[rank][0]
        return action.computation_type, action.stage_index, action.microbatch_index

    def runs(rank: int) -> bool:
        head = name(rank)
        if head is None:
            return False
        kind, stage, microbatch = head
        if kind == Kind.FORWARD:
            before = (stage - 1, microbatch)
            here = stage > 0 and rank_of[stage - 1] == rank
            assert stage == 0 or (before in done if here else (stage, microbatch) in arrived)
            done.add((stage, microbatch))
        elif kind == Kind.SEND_F:
            peer = rank_of[stage + 1]
            if name(peer) != (Kind.RECV_F, stage + 1, microbatch):
                return False
            assert (stage, microbatch) in done
            arrived.add((stage + 1, microbatch))
            left[peer].pop(0)
        else:
            return False
        left[rank].pop(0)
        return True

    while any(runs(rank) for rank in left):
        pass
    assert not any(left.values())
    assert len(done) == len(rank_of) * microbatches


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 7), st.integers(1, 4), st.integers(0, 2), st.integers(0, 1), st.integers(1, 3)
)
def test_what_is_cut_is_joined_again(
    count: int, microbatch: int, more: int, dim: int, repeats: int
) -> None:
    """Each sample makes three values of the output's dim, which has all samples several times."""

    def made(piece: torch.Tensor) -> torch.Tensor:
        return torch.cat([piece.repeat_interleave(3, dim) + of for of in range(repeats)], dim)

    rows = Rows(count=count, microbatch=microbatch, pieces=max(1, -(-count // microbatch)) + more)
    value = torch.arange(5.0 * count).reshape(count, 5).movedim(0, dim)
    parts = [made(piece) for piece in rows.cut(value, dim)]
    assert len(parts) == rows.pieces
    shape = tuple(parts[0].shape)
    output = Output(shape=shape, dtype="float32", batch_dim=dim, parts=repeats)
    whole = rows.place(output, ALONE.device)
    rows.join(parts, output, whole)
    assert torch.equal(whole, made(value))


def test_inputs_of_other_numbers_of_samples():
    tensors = {"x": torch.zeros(4, 2), "mask": torch.zeros(3)}
    with pytest.raises(PlanError, match=r"same number of samples.*'x' has 4, 'mask' has 3"):
        rows_of(tensors, {"x": 0, "mask": 0}, 2, ALONE)
    with pytest.raises(PlanError, match="no input has any"):
        rows_of(tensors, {"x": None, "mask": None}, 2, ALONE)
