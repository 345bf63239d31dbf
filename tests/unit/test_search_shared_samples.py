"""Samples are shared over tp where tables are nearly all of a model, and only there."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

from autoplan.search.planner import plan_job
from autoplan.search.pricing import Pricing
from autoplan.search.shared_samples import is_mostly_tables
from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.placement import Shard
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from hardware_profiles.load import load
from tests.unit.search_graphs import gated_mlp, job

WIDTH, CLUSTER = 32, load("dgx-h100")


class Ranked(nn.Module):
    """Rows of tables, joined, in a perceptron; or a table that is also the last layer's weight."""

    def __init__(self, rows: int, tables: int = 2, *, tied: bool = False) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, WIDTH) for _ in range(tables))
        self.up = nn.Linear(tables * WIDTH, 64)
        self.down = nn.Linear(64, WIDTH)
        self.tied = tied

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        read = torch.cat([table(ids[:, n]) for n, table in enumerate(self.tables)], -1)
        found = self.down(torch.relu(self.up(read)))
        if self.tied:
            found = found @ self.tables[0].weight.T
        return (found**2).mean()


@cache
def ranked(rows: int, *, tied: bool = False) -> OpGraph:
    with torch.device("meta"):
        return capture(Ranked(rows, tied=tied), {"ids": torch.zeros(2, 2, dtype=torch.long)})


DENSE = 2 * WIDTH * 64 + 64 + 64 * WIDTH + WIDTH


def test_nine_tenths_of_the_elements_are_most() -> None:
    """Tables hold 2 x rows x WIDTH elements beside DENSE others."""
    least = -(-9 * DENSE // (2 * WIDTH))
    assert is_mostly_tables(ranked(least))
    assert not is_mostly_tables(ranked(least - 1))


def test_a_table_that_is_a_factor_as_well_is_none() -> None:
    assert not is_mostly_tables(ranked(1 << 12, tied=True))
    assert not is_mostly_tables(gated_mlp(2))


@pytest.mark.parametrize("microbatch", [4, 6])
def test_samples_are_offered_where_the_ranks_divide_them(microbatch: int) -> None:
    graph = ranked(1 << 12)
    space = Pricing(graph, job(gpus=4, batch=12), CLUSTER).microbatch(4, microbatch).space
    products = [node.name for node in graph.of_kind("call") if "linear" in node.target]
    for name in products:
        offered = {strategy.outputs for strategy in space.of(name)}
        assert ((Shard(0),) in offered) == (microbatch == 4)


def test_a_model_of_products_has_the_choices_it_had() -> None:
    graph = gated_mlp(2)
    pricing = Pricing(graph, job(gpus=4, batch=8), CLUSTER)
    axis = MeshAxis("tp", 4)
    assert pricing.microbatch(4, 8).space.axis == axis
    for node in graph.of_kind("call"):
        if node.name != "/sum":
            placed = [
                at for strategy in pricing.strategies_of(node, axis) for at in strategy.outputs
            ]
            assert Shard(0) not in placed


def test_features_meet_their_samples_in_an_all_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, asked = ranked(1 << 21), job(gpus=8, batch=1 << 17, tp=8)
    found = plan_job(graph, asked, CLUSTER)
    monkeypatch.setattr(Pricing, "shares_samples", False)
    without = plan_job(graph, asked, CLUSTER)
    assert found.estimate.comm_s["all_to_all tp"] > 0
    assert "all_to_all tp" not in without.estimate.comm_s
    assert found.estimate.step_s < without.estimate.step_s
    assert "samples shared over tp" in found.search.space
    assert "samples shared over tp" not in without.search.space
