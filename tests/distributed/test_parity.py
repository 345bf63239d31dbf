"""Training real models in parallel is training them on one device, whatever the plan.

The full matrix of models, meshes, ZeRO stages, recompute, precisions and microbatches is marked
``slow``; the rest runs a subset in which every pair of values of two columns occurs.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import combinations, product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autoplan.runtime.parallelize import parallelize
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from tests.distributed.greedy import greedy_regions
from tests.distributed.harness import run_ranks
from tests.distributed.plans import make_plan
from tests.distributed.training import check_equal, make_optimizer, train_alone, train_parallel
from tests.parity.models import GPT, MLP, gpt2, initialise, language_batch, llama

GLOBAL_BATCH = 8
STEPS = 3
CELLS_PER_GROUP = 8


def _named(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"input_ids": batch["ids"], "labels": batch["labels"]}


def _regression(rows: int) -> dict[str, Tensor]:
    return {"x": torch.randn(rows, 16), "y": torch.randn(rows, 8)}


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], dict[str, Tensor]]]] = {
    "gpt2": (gpt2, lambda rows: _named(language_batch(rows))),
    "llama": (llama, lambda rows: _named(language_batch(rows))),
    "mlp": (MLP, _regression),
    "gpt": (GPT, language_batch),
    "gpt tied": (lambda: GPT(tied=True), language_batch),
}


@dataclass(frozen=True)
class Cell:
    model: str
    mesh: tuple[int, int]
    zero: int
    recompute: bool
    dtype: torch.dtype
    num_microbatches: int
    optimizer: str

    @property
    def world_size(self) -> int:
        return self.mesh[0] * self.mesh[1]


COLUMNS: dict[str, Sequence[Any]] = {
    "model": list(MODELS),
    "mesh": [(1, 2), (2, 1), (2, 2)],
    "zero": [0, 1, 2, 3],
    "recompute": [False, True],
    "dtype": [torch.float64, torch.float32],
    "num_microbatches": [1, 2],
    "optimizer": ["adamw", "sgd"],
}
ALL = [Cell(*values) for values in product(*COLUMNS.values())]


def _pairs(cell: Cell) -> set[tuple[Any, ...]]:
    values = [(field.name, getattr(cell, field.name)) for field in fields(cell)]
    return set(combinations(values, 2))


def pairwise(cells: Sequence[Cell]) -> list[Cell]:
    """A small subset in which every pair of values that occurs in ``cells`` occurs."""
    left = {cell: _pairs(cell) for cell in cells}
    open_pairs = set().union(*left.values())
    chosen = []
    while open_pairs:
        best = max(cells, key=lambda cell: len(left[cell] & open_pairs))
        chosen.append(best)
        open_pairs -= left[best]
    return chosen


def groups(cells: Sequence[Cell]) -> list[tuple[Cell, ...]]:
    """Cells of one world size, in groups that share their processes."""
    found = []
    for world_size in (2, 4):
        own = [cell for cell in cells if cell.world_size == world_size]
        found += [tuple(own[i : i + CELLS_PER_GROUP]) for i in range(0, len(own), CELLS_PER_GROUP)]
    return found


def make_model(name: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return initialise(MODELS[name][0](), dtype)


def make_batches(name: str, dtype: torch.dtype) -> list[dict[str, Tensor]]:
    torch.manual_seed(1)
    batches = [MODELS[name][1](GLOBAL_BATCH) for _ in range(STEPS)]
    return [
        {key: value.to(dtype) if value.is_floating_point() else value for key, value in b.items()}
        for b in batches
    ]


@cache
def graph_of(name: str, dtype: torch.dtype) -> OpGraph:
    return capture(make_model(name, dtype), make_batches(name, dtype)[0])


def lowest_dtype(graph: OpGraph) -> torch.dtype:
    """The lowest floating-point precision of any value: transformers computes losses in float32."""
    used = {meta.dtype for node in graph.nodes for meta in node.outputs}
    return torch.float32 if "float32" in used else torch.float64


def run_cell(cell: Cell) -> None:
    graph = graph_of(cell.model, cell.dtype)
    batches = make_batches(cell.model, cell.dtype)
    model = make_model(cell.model, cell.dtype)
    dp, tp = cell.mesh
    recomputed = frozenset(block.path for block in graph.blocks) if cell.recompute else frozenset()
    plan = make_plan(
        graph.fingerprint,
        global_batch=GLOBAL_BATCH,
        dp=dp,
        tp=tp,
        zero=cell.zero,
        num_microbatches=cell.num_microbatches,
        regions=greedy_regions(graph, tp, recomputed),
    )
    pm = parallelize(model, graph, plan)
    got = train_parallel(pm, batches, make_optimizer(cell.optimizer, pm.parameters()))
    expected = train_alone(model, batches, make_optimizer(cell.optimizer, model.parameters()))
    check_equal(got, expected, lowest_dtype(graph))


def run_cells(rank: int, cells: Sequence[Cell]) -> dict[Cell, str]:
    """What went wrong, by cell."""
    wrong = {}
    for cell in cells:
        try:
            run_cell(cell)
        except Exception:
            wrong[cell] = traceback.format_exc()
    return wrong


def run_group(cells: Sequence[Cell]) -> None:
    for cell in cells:
        graph_of(cell.model, cell.dtype)
    wrong = run_ranks(run_cells, cells[0].world_size, cells, deadline_s=280)[0]
    assert not wrong, "\n".join(f"{cell}\n{why}" for cell, why in wrong.items())


def _label(cells: Sequence[Cell]) -> str:
    return f"{cells[0].world_size} ranks"


@pytest.mark.parametrize("cells", groups(pairwise(ALL)), ids=_label)
def test_every_pair(cells):
    run_group(cells)


@pytest.mark.slow
@pytest.mark.parametrize("cells", groups(ALL), ids=_label)
def test_every_combination(cells):
    run_group(cells)
