"""DTensor's own rules agree: given our operands it needs no message and places results alike."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import Partial as TorchPartial
from torch.distributed.tensor import Replicate as TorchReplicate
from torch.distributed.tensor import Shard as TorchShard
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.placement import Partial, Placement, Replicate, Shard
from autoplan.sharding.rules import GraphRules
from tests.parity.ranks import shards
from tests.rules.oracle import Example, graph_of, operator, substituted, tensors_of

RANKS = 2


def floats(*shape):
    return torch.randn(shape, dtype=torch.float64)


EXAMPLES = [
    Example("aten.mm.default", (floats(4, 6), floats(6, 8))),
    Example("aten.bmm.default", (floats(2, 4, 6), floats(2, 6, 8))),
    Example("aten.gelu.default", (floats(4, 6),)),
    Example("aten.add.Tensor", (floats(4, 6), floats(6))),
    Example("aten.mul.Tensor", (floats(4, 6), floats(4, 1))),
    Example("aten.softmax.int", (floats(4, 6), 1)),
    Example("aten.layer_norm.default", (floats(4, 2, 6), [6], floats(6), floats(6))),
    Example("aten.sum.dim_IntList", (floats(4, 6), [1])),
    Example("aten.transpose.int", (floats(4, 6), 0, 1)),
    Example("aten.cat.default", ([floats(4, 6), floats(4, 2)], 1)),
    Example("aten.embedding.default", (floats(8, 6), torch.randint(8, (4, 2)))),
    Example("aten.view.default", (floats(4, 2, 6), [4, 12])),
    Example("aten.view.default", (floats(4, 12), [4, 2, 6])),
]


@pytest.fixture
def mesh():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield init_device_mesh("cpu", (RANKS,))
    dist.destroy_process_group()


def torch_placement(placement: Placement):
    match placement:
        case Replicate():
            return TorchReplicate()
        case Partial():
            return TorchPartial()
        case Shard(dim, 1):
            return TorchShard(dim)
    return None


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.target)
def test_dtensor_runs_our_strategies_without_messages(example, mesh):
    tensors = tensors_of(example)
    graph = graph_of(example, tensors)
    compared = 0
    for strategy in GraphRules(graph).strategies(graph.nodes[-1], MeshAxis("tp", RANKS)):
        placements = [port.placement for port in strategy.inputs]
        expected = torch_placement(strategy.outputs[0])
        given = [torch_placement(placement) for placement in placements]
        if strategy.local_op or None in given or expected is None:
            continue
        operands = [
            DTensor.from_local(shards(tensor, ours, RANKS)[0], mesh, [theirs], run_check=False)
            for tensor, ours, theirs in zip(tensors, placements, given, strict=True)
        ]
        with CommDebugMode() as messages:
            result = substituted(operator(example.target), example.args, {}, operands)
        assert messages.get_total_counts() == 0, strategy
        assert result.placements == (expected,), strategy
        compared += 1
    assert compared > 1
