"""The script that a plan is exported to, run by PyTorch alone, against one device."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from autoplan.export.decisions import Decisions
from autoplan.export.torch_script import split_modules, torch_script
from autoplan.plan import Plan, RegionPlan
from tests.distributed.cases import Case, graph_of, greedy_plan, make_batches, make_model
from tests.distributed.harness import run_ranks

DTYPE = torch.float32
RATE = 0.1


def case_of(mesh: tuple[int, int], zero: int, microbatches: int, recompute: bool) -> Case:
    return Case(
        model="llama",
        mesh=mesh,
        zero=zero,
        recompute=recompute,
        dtype=DTYPE,
        num_microbatches=microbatches,
        optimizer="sgd",
    )


def plan_of(case: Case) -> Plan:
    """Columns then rows in attention and feed-forward; the head, alone, by columns."""
    plan = greedy_plan(graph_of(case.model, DTYPE), case)
    return replace(plan, regions=tuple(map(_split, plan.regions)))


def _split(region: RegionPlan) -> RegionPlan:
    def placement(name: str) -> str:
        if "norm" in name:
            return "Replicate()"
        return "Shard(1)" if "o_proj" in name or "down_proj" in name else "Shard(0)"

    return replace(
        region,
        parameters={name: placement(name) for name in region.parameters},
        operators={name: "replicate" if "unsqueeze" in name else "d1" for name in region.operators},
    )


@pytest.mark.parametrize(
    "case",
    [case_of((2, 2), 3, 2, True), case_of((2, 2), 2, 2, False), case_of((1, 2), 0, 1, False)],
    ids=["2d", "zero 2", "tp"],
)
def test_the_script_trains_as_one_device(case: Case, tmp_path: Path) -> None:
    decisions = Decisions(plan_of(case))
    assert any(stays for _, stays in split_modules(decisions).values())
    assert any(not stays for _, stays in split_modules(decisions).values())
    path = tmp_path / "parallel.py"
    path.write_text(torch_script(decisions).files["parallel.py"], encoding="utf-8")
    expected = alone(case)
    for losses in run_ranks(_losses, case.world_size, case, path):
        assert losses == pytest.approx(expected, rel=2e-5)


def batches(case: Case) -> list[dict[str, Tensor]]:
    """Every token counts, so that a mean of means is the mean."""
    return [
        {name: value.clamp(min=0) for name, value in batch.items()}
        for batch in make_batches(case.model, DTYPE)
    ]


def alone(case: Case) -> list[float]:
    model = make_model(case.model, DTYPE)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    losses = []
    for batch in batches(case):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def _losses(rank: int, case: Case, path: Path) -> list[float]:
    script = _imported(path)
    model = script.parallelize(make_model(case.model, DTYPE), "cpu")
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    losses = []
    for batch in batches(case):
        mine = {name: _of_rank(value, rank // script.TP, case) for name, value in batch.items()}

        def loss_of(k: int, mine: dict[str, Tensor] = mine) -> Tensor:
            rows = slice(k * script.MICROBATCH, (k + 1) * script.MICROBATCH)
            return model(**{name: value[rows] for name, value in mine.items()}).loss

        total = script.train_step(model, loss_of)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        losses.append(total.item() / case.world_size)
    return losses


def _of_rank(value: Tensor, data_rank: int, case: Case) -> Tensor:
    return value.chunk(case.mesh[0])[data_rank]


def _imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("parallel", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_messages_are_those_of_the_zero_stage(tmp_path: Path) -> None:
    """Of the units of a model: two blocks and the root, in steps of two microbatches."""
    found = run_ranks(_messages, 2, [_script(zero, tmp_path) for zero in range(1, 4)])
    for stages in found:
        assert stages == [(3, 3), (3, 2 * 3), (2 * 2 * 3, 2 * 3)]


def _script(zero: int, folder: Path) -> Path:
    path = folder / f"zero{zero}.py"
    decisions = Decisions(plan_of(case_of((2, 1), zero, 2, False)))
    path.write_text(torch_script(decisions).files["parallel.py"], encoding="utf-8")
    return path


def _messages(rank: int, paths: list[Path]) -> list[tuple[int, int]]:
    """Gathers and reductions of the second step of each script."""
    case = case_of((2, 1), 0, 2, False)
    batch = {name: _of_rank(value, rank, case) for name, value in batches(case)[0].items()}
    found = []
    for path in paths:
        script = _imported(path)
        model = script.parallelize(make_model(case.model, DTYPE), "cpu")

        def loss_of(k: int, script: Any = script, model: Any = model) -> Tensor:
            rows = slice(k * script.MICROBATCH, (k + 1) * script.MICROBATCH)
            return model(**{name: value[rows] for name, value in batch.items()}).loss

        script.train_step(model, loss_of)
        with Messages() as messages:
            script.train_step(model, loss_of)
        found.append(
            (messages.counts["_allgather_base_"], messages.counts["_reduce_scatter_base_"])
        )
    return found


class Messages(TorchDispatchMode):
    """Counts collectives by the names of their operators."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def test_no_line_is_longer_than_a_screen() -> None:
    text = torch_script(Decisions(plan_of(case_of((1, 2), 0, 1, False))))
    lines = text.files["parallel.py"].splitlines()
    assert not [line for line in lines if len(line) > 110 and not re.match(r"# ", line)]
