"""Training real models in parallel is training them on one device, whatever the plan.

The full matrix of models, meshes, ZeRO stages, recompute, precisions and microbatches is marked
``slow``; the rest runs a subset in which every pair of values of two columns occurs.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import combinations, product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autoplan.job import Job, ModelSource, Pins, Precision
from autoplan.plan import MeshPlan, Plan
from autoplan.runtime.parallelize import parallelize
from autoplan.search.planner import plan_job
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from hardware_profiles.load import load
from tests.distributed.greedy import greedy_regions
from tests.distributed.harness import run_ranks
from tests.distributed.parity import full
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
    """The graph in ``dtype``; bfloat16 is the precision of a float32 model's computation."""
    stored = torch.float32 if dtype == torch.bfloat16 else dtype
    model, batch = make_model(name, stored), make_batches(name, stored)[0]
    return capture(model, batch, dtype=None if stored == dtype else dtype)


def lowest_dtype(graph: OpGraph) -> torch.dtype:
    """The lowest floating-point precision of any value: transformers computes losses in float32."""
    used = {meta.dtype for node in graph.nodes for meta in node.outputs}
    return torch.float32 if "float32" in used else torch.float64


def greedy_plan(graph: OpGraph, cell: Cell, precision: Precision = "fp32") -> Plan:
    dp, tp = cell.mesh
    recomputed = frozenset(block.path for block in graph.blocks) if cell.recompute else frozenset()
    return make_plan(
        graph.fingerprint,
        global_batch=GLOBAL_BATCH,
        dp=dp,
        tp=tp,
        zero=cell.zero,
        num_microbatches=cell.num_microbatches,
        precision=precision,
        regions=greedy_regions(graph, tp, recomputed),
    )


def searched_plan(graph: OpGraph, cell: Cell) -> Plan:
    """The planner's own, for devices so slow that splitting the work of a small model pays."""
    dp, tp = cell.mesh
    cluster = load("cpu-gloo")
    job = Job(
        model=ModelSource(kind="object", name=cell.model),
        cluster=cluster.name,
        nodes=1,
        gpus_per_node=dp * tp,
        global_batch=GLOBAL_BATCH,
        precision="fp32",
        pins=Pins(
            dp=dp,
            tp=tp,
            zero=cell.zero,
            microbatch=GLOBAL_BATCH // (dp * cell.num_microbatches),
            recompute="full" if cell.recompute else "none",
        ),
    )
    device = replace(cluster.device, peak_flops={"float32": 1e6, "float64": 1e6})
    plan = plan_job(graph, job, replace(cluster, device=device))
    assert plan.mesh == MeshPlan(dp=dp, tp=tp)
    assert (plan.zero, plan.num_microbatches) == (cell.zero, cell.num_microbatches)
    return plan


def run_cell(cell: Cell, plan: Plan) -> None:
    graph = graph_of(cell.model, cell.dtype)
    batches = make_batches(cell.model, cell.dtype)
    model = make_model(cell.model, cell.dtype)
    pm = parallelize(model, graph, plan)
    got = train_parallel(pm, batches, make_optimizer(cell.optimizer, pm.parameters()))
    expected = train_alone(model, batches, make_optimizer(cell.optimizer, model.parameters()))
    check_equal(got, expected, lowest_dtype(graph))


def run_cells(rank: int, plans: Mapping[Cell, Plan]) -> dict[Cell, str]:
    """What went wrong, by cell."""
    wrong = {}
    for cell, plan in plans.items():
        try:
            run_cell(cell, plan)
        except Exception:
            wrong[cell] = traceback.format_exc()
    return wrong


def run_group(cells: Sequence[Cell], make: Callable[[OpGraph, Cell], Plan]) -> dict[Cell, Plan]:
    plans = {cell: make(graph_of(cell.model, cell.dtype), cell) for cell in cells}
    wrong = run_ranks(run_cells, cells[0].world_size, plans, deadline_s=280)[0]
    assert not wrong, "\n".join(f"{cell}\n{why}" for cell, why in wrong.items())
    return plans


def _label(cells: Sequence[Cell]) -> str:
    return f"{cells[0].world_size} ranks"


@pytest.mark.parametrize("cells", groups(pairwise(ALL)), ids=_label)
def test_every_pair(cells):
    run_group(cells, greedy_plan)


SEARCHED = (
    Cell("gpt tied", (2, 2), 3, False, torch.float64, 2, "adamw"),
    Cell("llama", (2, 2), 0, True, torch.float32, 2, "adamw"),
    Cell("gpt2", (2, 2), 1, False, torch.float64, 1, "sgd"),
    Cell("mlp", (2, 2), 2, False, torch.float64, 2, "adamw"),
    Cell("gpt", (1, 4), 0, True, torch.float32, 1, "adamw"),
)


def first_gradients(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    output = model(**batch)
    (output if isinstance(output, Tensor) else output.loss).backward()
    return {name: p.grad.float() for name, p in model.named_parameters()}


def low_precision(rank: int, plans: Mapping[Cell, Plan]) -> list[tuple[float, float]]:
    """Gradient errors of bf16, in parallel and on one device, against float32 on one device."""
    found = []
    for cell, plan in plans.items():
        batch = make_batches(cell.model, torch.float32)[0]
        model = make_model(cell.model, torch.float32)
        pm = parallelize(model, graph_of(cell.model, torch.bfloat16), plan)
        pm.train_step(pm.shard_batch(batch))
        ours = {name: full(p.grad) for name, p in pm.named_parameters()}
        one = first_gradients(make_model(cell.model, torch.float32).to(torch.bfloat16), batch)
        true = first_gradients(model, batch)
        found.append(
            tuple(
                sum((got[name] - grad).norm() ** 2 for name, grad in true.items()).sqrt().item()
                for got in (ours, one)
            )
        )
    return found


def test_bf16_errs_no_more_than_bf16_on_one_device():
    cells = [
        Cell("gpt tied", (2, 2), 3, True, torch.bfloat16, 2, ""),
        Cell("llama", (2, 2), 0, False, torch.bfloat16, 1, ""),
        Cell("gpt2", (2, 2), 1, False, torch.bfloat16, 2, ""),
    ]
    plans = {
        cell: greedy_plan(graph_of(cell.model, cell.dtype), cell, precision="bf16")
        for cell in cells
    }
    for errors in run_ranks(low_precision, 4, plans):
        for parallel, alone in errors:
            assert 0 < parallel < 2 * alone


def test_plans_of_the_planner():
    plans = run_group(SEARCHED, searched_plan)
    for cell, plan in plans.items():
        operators = {label for region in plan.regions for label in region.operators.values()}
        assert operators - {"replicate"}, f"{cell} splits nothing"


@pytest.mark.slow
@pytest.mark.parametrize("cells", groups(ALL), ids=_label)
def test_every_combination(cells):
    run_group(cells, greedy_plan)
