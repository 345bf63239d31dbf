"""The pairs and local operators trace whole under torch.compile, forward and backward."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from autoplan.runtime import collectives as c
from autoplan.runtime.ops import vocab_parallel_cross_entropy, vocab_parallel_embedding


def everything(table, ids, w, target, axis):
    x = c.all_reduce__identity(vocab_parallel_embedding(table, ids, axis=axis), axis)
    x = c.slice__all_gather(x, 1, axis)
    x = c.all_to_all__all_to_all(x, 2, 1, axis, split_parts=2)
    x = c.all_gather__reduce_scatter(x, 2, axis, 2)
    x = c.reduce_scatter__all_gather(c.mask__identity(x, axis), 0, axis)
    x = c.all_gather__slice(x, 0, axis)
    logits = torch.nn.functional.linear(c.identity__all_reduce(x, axis), w)
    loss = vocab_parallel_cross_entropy(logits.flatten(0, 1), target, None, 2, axis=axis)
    return c.all_reduce__all_reduce(loss, axis)


def test_everything_compiles_without_breaks():
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        axis = c.AxisGroup("tp", 2, 1, dist.group.WORLD.group_name)
        table = torch.randn(5, 8, requires_grad=True)
        w = torch.randn(6, 8, requires_grad=True)
        ids, target = torch.randint(10, (2, 4)), torch.randint(12, (8,))
        compiled = torch.compile(everything, fullgraph=True, backend="aot_eager")
        loss = compiled(table, ids, w, target, axis)
        loss.backward()
        eager = everything(table, ids, w, target, axis)
        assert loss.shape == eager.shape == ()
        assert table.grad.shape == table.shape
        assert w.grad.shape == w.shape
    finally:
        dist.destroy_process_group()
