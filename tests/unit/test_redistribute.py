"""Conversions against the meaning of placements: what every rank must hold, both ways."""

from __future__ import annotations

import itertools

import pytest
import torch

from autoplan.errors import PlanError
from autoplan.sharding.placement import Partial, Replicate, Shard, grad_of
from autoplan.sharding.redistribute import conversion, is_possible, messages
from autoplan.sharding.strategies import Port
from tests.parity.ranks import combine, shards

RANKS = 2
PLACEMENTS = [Replicate(), Partial(), Shard(0), Shard(1), Shard(0, 2), Shard(1, 3)]
PORTS = [
    *(Port(placement, grad_of(placement)) for placement in PLACEMENTS),
    Port(Replicate(), Partial()),
]
EDGES = [edge for edge in itertools.product(PLACEMENTS, PORTS) if is_possible(*edge)]


def move(motion, pieces, source, target):
    """What the ranks hold after a motion, as the motion is described."""
    whole = combine(pieces, source)
    match motion:
        case "identity":
            return pieces
        case "all_reduce":
            return [sum(pieces)] * RANKS
        case "all_gather":
            return [whole] * RANKS
        case "mask":
            return [pieces[0], *(torch.zeros_like(piece) for piece in pieces[1:])]
        case "slice":
            return [shards(piece, target, RANKS)[rank] for rank, piece in enumerate(pieces)]
        case "reduce_scatter":
            return shards(sum(pieces), target, RANKS)
        case "all_to_all" | "regroup":
            assert (source.dim == target.dim) == (motion == "regroup")
            return shards(whole, target, RANKS)
    raise AssertionError(motion)


@pytest.mark.parametrize(("producer", "port"), EDGES, ids=str)
def test_the_reader_gets_the_tensor_and_the_producer_the_gradient(producer, port):
    torch.manual_seed(0)
    whole = torch.randn(8, 6, dtype=torch.float64)
    made = conversion(producer, port, differentiable=True)
    forward, backward = (made.forward, made.backward) if made else ("identity", "identity")

    there = move(forward, shards(whole, producer, RANKS), producer, port.placement)
    torch.testing.assert_close(combine(there, port.placement), whole)
    back = move(backward, shards(whole, port.grad, RANKS), port.grad, grad_of(producer))
    torch.testing.assert_close(combine(back, grad_of(producer)), whole)


@pytest.mark.parametrize(("producer", "port"), EDGES, ids=str)
def test_backward_is_the_adjoint_of_forward(producer, port):
    """sum over ranks of <move(x), g> equals the sum of <x, move back(g)>, counted by placement."""
    torch.manual_seed(1)
    made = conversion(producer, port, differentiable=True)
    forward, backward = (made.forward, made.backward) if made else ("identity", "identity")
    x, g = torch.randn(2, 8, 6, dtype=torch.float64)
    there = move(forward, shards(x, producer, RANKS), producer, port.placement)
    back = move(backward, shards(g, port.grad, RANKS), port.grad, grad_of(producer))

    def inner(values, placement, grads, grad):
        total = sum((value * given).sum() for value, given in zip(values, grads, strict=True))
        return total / RANKS if placement == grad == Replicate() else total

    truth = (x * g).sum()
    read = inner(there, port.placement, shards(g, port.grad, RANKS), port.grad)
    left = inner(shards(x, producer, RANKS), producer, back, grad_of(producer))
    torch.testing.assert_close(read, truth)
    torch.testing.assert_close(left, truth)


@pytest.mark.parametrize("producer", PLACEMENTS, ids=str)
def test_nothing_to_do_in_place(producer):
    port = Port(producer, grad_of(producer))
    assert conversion(producer, port, differentiable=True) is None


def test_without_gradient_only_the_tensor_moves():
    port = Port(Replicate(), Partial())
    assert conversion(Replicate(), port, differentiable=False) is None
    gathered = conversion(Shard(0), port, differentiable=False)
    assert gathered is not None
    assert (gathered.forward, gathered.backward) == ("all_gather", "identity")


def test_a_shard_never_becomes_a_partial():
    port = Port(Partial(), Replicate())
    assert not is_possible(Shard(0), port)
    with pytest.raises(PlanError, match=r"Shard\(0\) cannot be read as Partial\(sum\)"):
        conversion(Shard(0), port, differentiable=True)


GATHER, SCATTER, SUM = ("all_gather", 960), ("reduce_scatter", 960), ("all_reduce", 960)


@pytest.mark.parametrize(
    ("producer", "port", "forward", "backward"),
    [
        (Replicate(), Port(Replicate(), Partial()), (), (SUM,)),
        (Replicate(), Port(Shard(1), Shard(1)), (), (GATHER,)),
        (Replicate(), Port(Partial(), Replicate()), (), ()),
        (Partial(), Port(Replicate(), Replicate()), (SUM,), ()),
        (Partial(), Port(Shard(0), Shard(0)), (SCATTER,), (GATHER,)),
        (Shard(0), Port(Replicate(), Replicate()), (GATHER,), ()),
        (Shard(0), Port(Replicate(), Partial()), (GATHER,), (SCATTER,)),
        (Shard(0), Port(Shard(1), Shard(1)), (("all_to_all", 240),), (("all_to_all", 240),)),
        (Shard(0), Port(Shard(0, 3), Shard(0, 3)), (GATHER,), (GATHER,)),
    ],
)
def test_messages(producer, port, forward, backward):
    made = conversion(producer, port, differentiable=True)
    assert made is not None
    assert messages(made, 960, 4) == (forward, backward)
