"""Every pair of messages, on simulated ranks, against the placements' own definition."""

from __future__ import annotations

import pytest
import torch

from autoplan.runtime import collectives as c
from autoplan.sharding.placement import Partial, Replicate, Shard
from tests.parity.ranks import combine, of_rank, per_rank, shards, simulated_ranks

R, P = Replicate(), Partial()
SHAPE = (8, 24, 16)


def case(call, source, read, grad_read, grad_source, name):
    return pytest.param(call, source, read, grad_read, grad_source, id=name)


def sharded_cases(shard):
    dim, parts = shard.dim, shard.parts

    def gather(f):
        return lambda x, axis: f(x, dim, axis, parts)

    return [
        case(gather(c.all_gather__slice), shard, R, R, shard, f"gather-slice-{shard}"),
        case(gather(c.all_gather__reduce_scatter), shard, R, P, shard, f"gather-scatter-{shard}"),
        case(gather(c.reduce_scatter__all_gather), P, shard, shard, R, f"scatter-gather-{shard}"),
        case(gather(c.slice__all_gather), R, shard, shard, R, f"slice-gather-{shard}"),
    ]


def exchange(old, new):
    def call(x, axis):
        return c.all_to_all__all_to_all(
            x, new.dim, old.dim, axis, split_parts=new.parts, concat_parts=old.parts
        )

    return case(call, old, new, new, old, f"exchange-{old}-{new}")


def regroup(old, new):
    def call(x, axis):
        return c.regroup__regroup(x, old.dim, axis, old_parts=old.parts, new_parts=new.parts)

    return case(call, old, new, new, old, f"regroup-{old}-{new}")


CASES = [
    regroup(Shard(1), Shard(1, parts=3)),
    regroup(Shard(1, parts=3), Shard(1, parts=2)),
    case(c.identity__all_reduce, R, R, P, R, "identity-all_reduce"),
    case(c.all_reduce__identity, P, R, R, R, "all_reduce-identity"),
    case(c.all_reduce__all_reduce, P, R, P, R, "all_reduce-all_reduce"),
    case(c.mask__identity, R, P, R, R, "mask-identity"),
    *sharded_cases(Shard(0)),
    *sharded_cases(Shard(1)),
    *sharded_cases(Shard(2)),
    *sharded_cases(Shard(1, parts=3)),
    *sharded_cases(Shard(0, parts=2)),
    *(
        exchange(old, new)
        for old in (Shard(0), Shard(1), Shard(1, parts=3))
        for new in (Shard(0), Shard(2), Shard(1), Shard(2, parts=2))
        if old.dim != new.dim
    ),
]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("call", "source", "read", "grad_read", "grad_source"), CASES)
def test_pair_moves_value_and_gradient(call, source, read, grad_read, grad_source, ranks):
    torch.manual_seed(0)
    whole, grad = (torch.randn(SHAPE, dtype=torch.float64) for _ in range(2))
    held, left = shards(whole, source, ranks), shards(grad, grad_read, ranks)
    with simulated_ranks(ranks) as axis:
        x = per_rank(held).requires_grad_()
        y = call(x, axis)
        y.backward(per_rank(left))
    torch.testing.assert_close(combine(of_rank(y), read), whole)
    torch.testing.assert_close(combine(of_rank(x.grad), grad_source), grad)
    assert all(value.is_contiguous() for value in of_rank(y))


def test_slice_does_not_keep_the_whole_alive():
    with simulated_ranks(2) as axis:
        x = per_rank([torch.randn(4, 3)] * 2)
        y = c.slice__all_gather(x, 0, axis)
    assert all(value.untyped_storage().nbytes() == value.nbytes for value in of_rank(y))


def test_one_rank_sends_nothing():
    alone = c.AxisGroup("tp", 1, 0, "no such group")
    x = torch.randn(4, 4)
    assert c.identity__all_reduce(x, alone) is x
    assert c.all_gather__reduce_scatter(x, 0, alone) is x
    assert c.all_to_all__all_to_all(x, 0, 1, alone) is x
    assert c.reduce_over(x, alone) is x


def test_a_weight_added_to_terms_keeps_its_gradient_apart():
    """Rows put together from one sample hold parts of the gradient that the weight is left."""
    weight, token = torch.randn(1, 3, 4).requires_grad_(), torch.randn(1, 1, 4).requires_grad_()
    x, axis = torch.randn(1, 2, 4), c.AxisGroup("tp", 2, 0, "0")

    def loss():
        rows = torch.cat([token.expand(1, -1, -1), x], 1)
        return (rows + c.mask__identity(weight, axis)).square().sum()

    once = torch.autograd.grad(loss(), (token, weight))
    for _ in range(2):
        loss().backward()
    torch.testing.assert_close((token.grad, weight.grad), tuple(2 * grad for grad in once))
