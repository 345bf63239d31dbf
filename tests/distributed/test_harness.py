import multiprocessing
import os
import threading

import pytest
import torch
import torch.distributed as dist

from tests.distributed.harness import RankError, run_outcomes, run_ranks


def _sum_of_ranks(rank: int, start: int) -> float:
    value = torch.tensor(float(rank + start))
    dist.all_reduce(value)
    return value.item()


def test_ranks_share_a_group_and_results_come_back_in_order():
    assert run_ranks(lambda rank: (rank, dist.get_world_size()), 3) == [(0, 3), (1, 3), (2, 3)]
    assert run_ranks(_sum_of_ranks, 2, 10) == [21.0, 21.0]


def _raise_on_one(rank: int) -> None:
    if rank == 1:
        raise RuntimeError("rank one gave up")
    dist.barrier()


def test_an_exception_is_reported_with_its_rank():
    with pytest.raises(RankError, match=r"(?s)rank 1 of 2.*rank one gave up"):
        run_ranks(_raise_on_one, 2)


def test_a_rank_that_dies_is_reported_and_ends_the_others():
    outcomes = run_outcomes(lambda rank: os._exit(3) if rank == 0 else dist.barrier(), 2)
    assert outcomes[0].died
    assert not outcomes[1].ok


def _hang_on_one(rank: int) -> None:
    if rank == 1:
        threading.Event().wait()
    dist.barrier()


def test_ranks_that_hang_are_killed_at_the_deadline():
    outcomes = run_outcomes(_hang_on_one, 2, deadline_s=2)
    assert all(outcome.died for outcome in outcomes)
    assert not multiprocessing.active_children()


def test_results_may_hold_tensors():
    ones = run_ranks(lambda rank: torch.full((2,), float(rank)), 2)
    assert [value.tolist() for value in ones] == [[0.0, 0.0], [1.0, 1.0]]
