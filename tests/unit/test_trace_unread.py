"""What a forward does beside its loss: dropouts draw, statistics of BatchNorms move."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import autoplan
from autoplan.errors import UnsupportedModelError
from autoplan.plan import Plan
from autoplan.runtime.parallelize import parallelize
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from tests.distributed.greedy import greedy_regions
from tests.distributed.plans import make_plan


def alone(graph: OpGraph) -> Plan:
    return make_plan(graph.fingerprint, global_batch=8, regions=greedy_regions(graph, tp=1))


class Block(nn.Module):
    def __init__(self, looks: bool) -> None:
        super().__init__()
        self.linear, self.looks = nn.Linear(6, 6), looks

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.dropout(self.linear(x), 0.5)
        if self.looks:
            nn.functional.dropout(h.exp(), 0.25)
        return x + nn.functional.dropout(h.tanh(), 0.5)


class Peeking(nn.Module):
    """Drops beside its loss: ahead of the blocks, in those that look, and between them."""

    def __init__(self, looking: tuple[bool, ...]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(map(Block, looking))

    def forward(self, x: Tensor) -> Tensor:
        nn.functional.dropout(x, 0.5)
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index == 1:
                nn.functional.dropout(x, 0.5)
        return x.square().mean()


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("looking", [(True,) * 4, (False,) * 5])
def test_dropouts_that_nothing_reads_count(looking: tuple[bool, ...], fold: bool) -> None:
    torch.manual_seed(1)
    model, x = Peeking(looking).double(), torch.randn(8, 6, dtype=torch.float64)
    graph = capture(model, (x,), fold=fold)
    pm = parallelize(model, graph, alone(graph), seed=5)
    for step in range(2):
        with autoplan.reference_dropout(seed=5, step=step):
            expected = model(x)
        torch.testing.assert_close(pm.train_step((x,)), expected)


def test_blocks_of_a_kind_that_draw_unlike_are_refused() -> None:
    model, x = Peeking((False, False, True)).double(), torch.randn(8, 6, dtype=torch.float64)
    graph = capture(model, (x,))
    with pytest.raises(UnsupportedModelError, match="does not need, in some"):
        parallelize(model, graph, alone(graph), seed=5)


class Normed(nn.Module):
    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.aside, self.linear = nn.BatchNorm1d(4, **options), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.aside(x)
        return self.linear(x).square().mean()


def test_statistics_that_only_move_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="BatchNorm 'aside'"):
        capture(Normed(), (torch.randn(8, 4),))


def test_norms_aside_that_change_nothing_are_left_out() -> None:
    still = Normed()
    still.aside.eval()
    for model in (still, Normed(track_running_stats=False)):
        graph = capture(model, (torch.randn(8, 4),))
        assert not any("batch_norm" in node.target for node in graph.nodes)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.norm, self.linear(x), use_reentrant=False).square().mean()


def test_statistics_that_move_twice_are_refused() -> None:
    model, x = Checkpointed(), torch.randn(8, 4)
    model(x).backward()
    assert model.norm.num_batches_tracked == 2
    with pytest.raises(UnsupportedModelError, match=r"BatchNorm1d inside torch\.utils\.checkpoint"):
        capture(model, (x,))
    capture(model.eval(), (x,))
