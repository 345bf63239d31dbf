"""Any piece of a mask is that part of the whole, and masks look random however they are counted."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from autoplan.runtime.collectives import AxisGroup
from autoplan.runtime.dropout import invariant_dropout
from autoplan.runtime.dropout_mask import keep_mask
from autoplan.runtime.random import Draws, mixed
from autoplan.sharding.placement import Shard
from tests.parity.ranks import shards

CPU = torch.device("cpu")
SIGMAS = 4.5  # about one in 150,000 for a normal deviate


def mask(shape: tuple[int, ...], p: float, *, seed: int = 0, step: int = 0, number: int = 0):
    return keep_mask(shape, [()] * len(shape), Draws(seed=seed, step=step).key(number), p, CPU)


def centred(kept: Tensor, p: float) -> Tensor:
    """Of mean 0 and variance 1 if each element is kept with probability 1 - p."""
    return (kept.double() - (1 - p)) / math.sqrt(p * (1 - p))


def sigmas(values: Tensor) -> float:
    """By how many standard deviations a sum of independent values, centred so, is off."""
    return abs(values.sum().item()) / math.sqrt(values.numel())


def test_keys_are_those_of_splitmix64():
    """The first outputs from seed 1234567, as published with the generator's C code."""
    outputs, state = [], 1234567
    for _ in range(3):
        outputs.append(mixed(state))
        state += 0x9E3779B97F4A7C15
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_piece_is_that_part_of_the_whole(data):
    """Over the batch, then over ranks in any number of parts, of the same dim or of another."""
    factors = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    at, of = (data.draw(st.integers(0, len(factors) - 1)) for _ in range(2))
    pieces, ranks = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 4))
    batch_parts, parts = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
    shape = list(factors)
    shape[at] *= pieces * batch_parts
    shape[of] *= ranks * parts
    if at == of:  # each split must divide what the other leaves
        shape[at] *= pieces * batch_parts * ranks * parts
    x = torch.ones(shape)
    piece, rank = data.draw(st.integers(0, pieces - 1)), data.draw(st.integers(0, ranks - 1))

    def dropped(x: Tensor, axis: AxisGroup, piece: int, pieces: int, **split) -> Tensor:
        draws = Draws(seed=7, step=2, piece=piece, pieces=pieces)
        return invariant_dropout(x, 0.4, draws=draws, number=3, axis=axis, **split)

    whole = dropped(x, AxisGroup("tp", 1, 0, ""), 0, 1)
    own = shards(whole, Shard(at, batch_parts), pieces)[piece]
    own = shards(own, Shard(of, parts), ranks)[rank]
    found = dropped(
        torch.ones(own.shape),
        AxisGroup("tp", ranks, rank, ""),
        piece,
        pieces,
        batch=(at, batch_parts),
        shard=(of, parts),
    )
    assert torch.equal(found, own)


@pytest.mark.parametrize("p", [0.5, 0.1, 0.9, 0.01, 1e-3])
@pytest.mark.parametrize("shape", [(2**18,), (512, 512), (2**18, 1), (8, 4, 64, 128)])
def test_the_rate_is_binomial(shape, p):
    for seed in range(3):
        assert sigmas(centred(mask(shape, p, seed=seed), p)) < SIGMAS


@pytest.mark.parametrize("p", [0.5, 0.1])
def test_neighbours_are_independent(p):
    kept = centred(mask((512, 768), p, seed=1), p)
    for rows, columns in [
        (0, 1),
        (0, 2),
        (0, 3),
        (0, 64),
        (1, 0),
        (2, 0),
        (256, 0),
        (1, 1),
        (3, 5),
    ]:
        shifted = kept[rows:, columns:]
        assert sigmas(shifted * kept[: len(shifted), : shifted.shape[1]]) < SIGMAS
    assert sigmas(kept[:, 2:] * kept[:, 1:-1] * kept[:, :-2]) < SIGMAS
    corners = kept[1:, 1:] * kept[:-1, 1:] * kept[1:, :-1] * kept[:-1, :-1]
    assert sigmas(corners) < SIGMAS


def test_masks_of_other_steps_calls_and_seeds_are_independent():
    p, shape = 0.3, (256, 512)
    base = centred(mask(shape, p), p)
    for change in range(1, 6):
        for what in ("seed", "step", "number"):
            other = centred(mask(shape, p, **{what: change}), p)
            assert sigmas(base * other) < SIGMAS
    assert (
        sigmas(centred(mask(shape, p, step=1), p) * centred(mask(shape, p, number=1), p)) < SIGMAS
    )


def test_rows_and_columns_have_binomial_sums():
    """Pearson's statistic of the sums of 1024 rows, and of columns; its deviation is 2 / 1024."""
    kept = centred(mask((1024, 1024), 0.1, seed=5), 0.1)
    for dim in (0, 1):
        statistic = (kept.sum(dim) ** 2 / 1024).mean().item()
        assert abs(statistic - 1) < SIGMAS * math.sqrt(2 / 1024)


def test_the_matrix_has_no_structure():
    """The largest singular value is that of noise (Bai and Yin 1988)."""
    kept = centred(mask((400, 600), 0.2, seed=2), 0.2)
    largest = torch.linalg.svdvals(kept)[0].item()
    assert largest == pytest.approx(math.sqrt(400) + math.sqrt(600), rel=0.04)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_kept_elements_are_scaled_and_gradients_follow(dtype):
    x = torch.randn(64, 32, dtype=dtype, requires_grad=True)
    axis = AxisGroup("tp", 1, 0, "")
    y = invariant_dropout(x, 0.25, draws=Draws(seed=1, step=0), number=0, axis=axis)
    kept = mask((64, 32), 0.25, seed=1)
    torch.testing.assert_close(y, x * kept / 0.75)
    y.sum().backward()
    torch.testing.assert_close(x.grad, (kept / 0.75).to(dtype))


def test_rates_of_one_and_evaluation():
    x, axis = torch.randn(4, 4), AxisGroup("tp", 1, 0, "")
    draws = Draws(seed=1, step=0)
    assert not invariant_dropout(x, 1.0, draws=draws, number=0, axis=axis).any()
    assert invariant_dropout(x, 0.5, draws=None, number=0, axis=axis) is x
    assert invariant_dropout(torch.tensor(1.0), 0.5, draws=draws, number=0, axis=axis).shape == ()
