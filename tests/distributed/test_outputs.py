"""Outputs without a loss on gloo ranks: whole, of each rank's samples, before and after a step."""

from __future__ import annotations

import pytest

from tests.distributed.evaluations import Cell, check

TWO = (
    Cell(family="gpt2", tp=2),
    Cell(family="vit-b16", dp=2, zero=3),
    Cell(family="gpt2", pp=2, firsts=(0, 2)),
)
FOUR = (Cell(family="llama3.2-1b", pp=2, tp=2, firsts=(0, 2)),)
MORE = (
    Cell(family="t5-small", dp=2, tp=2, zero=3),
    Cell(family="llama3.2-1b", pp=2, dp=2, zero=2, firsts=(0, 2)),
    Cell(family="gpt2", pp=2, dp=2, firsts=(0, 1, 2, 3), schedule="interleaved_1f1b"),
    Cell(family="bert-base", pp=2, tp=2, firsts=(0, 1, 2, 3), schedule="zbv"),
    Cell(family="bart-base", pp=4, firsts=(0, 2, 4, 5), num_microbatches=4),
    Cell(family="mixtral-8x7b", dp=2, tp=2, zero=1),
)


def test_two_ranks():
    check(TWO)


def test_pipeline_with_tensor_parallelism():
    check(FOUR)


@pytest.mark.slow
@pytest.mark.parametrize("cell", MORE, ids=str)
def test_more_plans(cell):
    check([cell])
