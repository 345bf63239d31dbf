"""Lookups in tables under random placements give the loss and gradients of one device."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoplan.errors import UnsupportedModelError
from autoplan.sharding.batch import batch_layout
from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.rules import GraphRules
from autoplan.trace.capture import capture
from tests.parity.choose import random_program, recipe
from tests.parity.models import initialise
from tests.parity.simulate import assert_same, one_device, sharded

BATCH, ROWS, WIDTH, LENGTH = 12, 16, 8, 4
LOOKUPS = (
    "aten.embedding.default",
    "aten.embedding_bag.padding_idx",
    "aten.gather.default",
    "autoplan.bags.default",
)


class Scored(nn.Module):
    """Bags of rows, or single rows, in a linear layer; labels are classes."""

    def __init__(self, table: nn.Embedding | nn.EmbeddingBag, shares: bool = False) -> None:
        super().__init__()
        self.table, self.shares = table, shares
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, ids: Tensor, shares: Tensor, labels: Tensor) -> Tensor:
        if isinstance(self.table, nn.Embedding):
            read = (self.table(ids) * shares.unsqueeze(-1)).sum(1)
        else:
            read = self.table(ids, per_sample_weights=shares if self.shares else None)
        return F.cross_entropy(self.head(read), labels)


class Stacked(nn.Module):
    """Tables of equal size in one weight, each read at numbers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.Parameter(torch.empty(LENGTH, ROWS, WIDTH))
        self.head = nn.Linear(LENGTH * WIDTH, 8)

    def forward(self, ids: Tensor, shares: Tensor, labels: Tensor) -> Tensor:
        picked = ids.t().unsqueeze(-1).expand(-1, -1, WIDTH)
        read = self.tables.gather(1, picked).transpose(0, 1) * shares.unsqueeze(-1)
        return F.cross_entropy(self.head(read.flatten(1)), labels)


def bag(mode: str, **options) -> Scored:
    shares = options.pop("shares", False)
    return Scored(nn.EmbeddingBag(ROWS, WIDTH, mode=mode, **options), shares)


MODELS = {
    "sum": lambda: bag("sum"),
    "weighed": lambda: bag("sum", shares=True, padding_idx=3),
    "mean": lambda: bag("mean", padding_idx=3),
    "max": lambda: bag("max", padding_idx=-1),
    "sparse-bag": lambda: bag("mean", sparse=True),
    "rows": lambda: Scored(nn.Embedding(ROWS, WIDTH, padding_idx=-2)),
    "sparse-rows": lambda: Scored(nn.Embedding(ROWS, WIDTH, sparse=True)),
    "stacked": Stacked,
}


def made(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A model and its batch; the last sample's bag is all padding."""
    torch.manual_seed(0)
    ids = torch.randint(ROWS, (BATCH, LENGTH))
    ids[-1] = 3
    batch = {
        "ids": ids,
        "shares": torch.rand(BATCH, LENGTH, dtype=torch.float64),
        "labels": torch.randint(8, (BATCH,)),
    }
    return initialise(MODELS[name](), torch.float64), batch


def dense(gradient: Tensor | None) -> Tensor | None:
    return gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient


@pytest.mark.parametrize(("tp", "dp", "microbatches"), [(2, 1, 1), (4, 1, 3), (2, 3, 2)])
@pytest.mark.parametrize("name", MODELS)
def test_random_placements_of_tables(name, tp, dp, microbatches):
    model, batch = made(name)
    graph = capture(model, batch).at_batch(BATCH)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda parameter: setattr(parameter, "grad", dense(parameter.grad))
        )
    truth = one_device(model, lambda: model(**batch))
    for seed in range(2):
        emitted = random_program(graph, tp, seed, dp=dp, num_microbatches=microbatches)
        assert_same(sharded(emitted, model, batch), truth)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", ["sum", "weighed", "mean", "max", "rows", "stacked"])
def test_a_table_stored_by_rows_or_columns_is_never_gathered(name, dim):
    """The maximum has no terms, so rows of its table stay together."""
    model, batch = made(name)
    graph = capture(model, batch).at_batch(BATCH)
    choice = recipe(graph, 4, {"table.weight": dim, "tables": 0})
    (lookup,) = [node for node in graph.of_kind("call") if node.target in LOOKUPS]
    (port, *_) = choice.assignment.strategies[lookup.name].inputs
    stored = choice.assignment.storage[lookup.operands[0].node]
    assert (port.placement == stored) == (name != "max" or dim == 1)


def labels_of(model: nn.Module, batch: dict[str, Tensor], **options) -> tuple[set[str], bool]:
    """Strategies of the lookup on tp=2, and whether samples are mixed."""
    graph = capture(model, batch, **options)
    (lookup,) = [node for node in graph.of_kind("call") if node.target in LOOKUPS]
    offered = GraphRules(graph).strategies(lookup, MeshAxis("tp", 2))
    return {strategy.label for strategy in offered}, bool(batch_layout(graph).mixing)


class Ragged(nn.Module):
    def __init__(self, **options) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(ROWS, WIDTH, **options)

    def forward(self, ids: Tensor, offsets: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.table(ids, offsets), y)


def ragged_batch() -> dict[str, Tensor]:
    offsets, y = torch.tensor([0, 3, 3, 9]), torch.randn(4, WIDTH, dtype=torch.float64)
    return {"ids": torch.randint(ROWS, (12,)), "offsets": offsets, "y": y}


@pytest.mark.parametrize(
    ("mode", "labels"), [("sum", {"replicate", "v", "m"}), ("mean", {"replicate", "m"})]
)
def test_bags_that_start_at_offsets_are_one_batch(mode, labels):
    batch = ragged_batch()
    found, mixes = labels_of(Ragged(mode=mode), batch, batch_dims={"ids": None})
    assert found == labels
    assert mixes


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_that_start_at_offsets_equal_one_device(mode):
    batch, model = ragged_batch(), initialise(Ragged(mode=mode), torch.float64)
    graph = capture(model, batch, batch_dims={"ids": None}).at_batch(4)
    truth = one_device(model, lambda: model(**batch))
    for seed in range(3):
        assert_same(sharded(random_program(graph, 4, seed), model, batch), truth)


def test_gradients_scaled_by_frequency_keep_the_batch_whole():
    model, batch = made("sum")
    model.table = nn.EmbeddingBag(ROWS, WIDTH, mode="sum", scale_grad_by_freq=True).double()
    found, mixes = labels_of(model, batch)
    assert found == {"replicate"}
    assert mixes


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_a_table_that_shortens_its_rows_is_refused(kind):
    model, batch = Scored(kind(ROWS, WIDTH, max_norm=1.0)), made("sum")[1]
    with pytest.raises(UnsupportedModelError, match=r"max_norm.*test_embeddings\.py:\d+\); leave"):
        capture(model, batch)
