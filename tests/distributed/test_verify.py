"""``autoplan verify``: from a plan file to the exit code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from autoplan import plan_io, zoo
from autoplan.cli import main
from autoplan.job import ModelSource, Precision
from autoplan.plan import Plan
from autoplan.runtime import comparison, engines
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from autoplan.verification import processes
from tests.distributed.greedy import greedy_regions
from tests.distributed.plans import make_plan
from tests.parity.models import GPT, language_batch
from tests.parity.stages import stages_at
from tests.unit.sample_plan import PLAN

FACTORY = "tests.distributed.test_verify:factory"


def factory() -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    return GPT(), language_batch(2)


def saved(plan: Plan, source: ModelSource, path: Path) -> str:
    """The plan in a file, with the estimate of another one for each rank of its pipeline."""
    stages = (replace(PLAN.estimate.stages[0], devices=plan.mesh.dp * plan.mesh.tp),)
    plan = replace(
        plan,
        job=replace(plan.job, model=source),
        estimate=replace(PLAN.estimate, stages=stages * plan.mesh.pp),
        search=PLAN.search,
        profile_digest=PLAN.profile_digest,
    )
    plan_io.save(plan, path)
    return str(path)


@pytest.fixture
def plan_file(tmp_path: Path) -> str:
    """dp 2 x tp 2."""
    model, batch = factory()
    graph = capture(model, batch)
    plan = make_plan(
        graph.fingerprint, global_batch=8, dp=2, tp=2, num_microbatches=2,
        regions=greedy_regions(graph, 2),
    )  # fmt: skip
    return saved(plan, ModelSource(kind="factory", name=FACTORY), tmp_path / "plan.json")


def test_a_model_of_the_users_is_run_whole(plan_file: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["verify", plan_file, "--model", FACTORY, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["ranks"], found["precision"], found["cuts"]) == (
        True, 4, "float64", [],
    )  # fmt: skip
    assert "4 ranks run 1 program with" in found["orders"]


def test_a_difference_is_named_with_its_operator(
    plan_file: str, capsys: pytest.CaptureFixture
) -> None:
    term = engines.OneStage.term
    wrong = mock.patch.object(
        engines.OneStage, "term", lambda *args, **kwargs: 2 * term(*args, **kwargs)
    )
    with wrong:
        assert main(["verify", plan_file, "--model", FACTORY, "--ranks", "1"]) == 1
    printed = capsys.readouterr().out
    assert "Cut down to run here: dp 2 -> 1, tp 2 -> 1" in printed
    assert "gradients: head.weight is off by" in printed
    assert "came first to head.weight, read by head/linear" in printed


def test_ranks_that_do_not_meet_are_told(
    plan_file: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = comparison._differences

    def fails_on_rank_1(checks: list, lowest: torch.dtype, state) -> list:
        if state.mesh.rank == 1:
            raise RuntimeError("no such operator")
        return compare(checks, lowest, state)

    monkeypatch.setattr(comparison, "_differences", fails_on_rank_1)
    monkeypatch.setattr(processes, "GRACE_S", 0.5)
    assert main(["verify", plan_file, "--model", FACTORY, "--ranks", "2"]) == 1
    assert "rank 1 failed: RuntimeError: no such operator" in capsys.readouterr().out


def test_code_named_in_a_plan_is_not_run(plan_file: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["verify", plan_file]) == 1
    assert f"give --model {FACTORY}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("llama3.2-1b", "bf16"),
        pytest.param("t5-small", "fp32", marks=pytest.mark.slow),
        pytest.param("gpt2", "bf16", marks=pytest.mark.slow),
    ],
)
def test_published_models_are_cut_down(
    name: str, precision: Precision, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    case = zoo.build(name)
    dtype = torch.bfloat16 if precision == "bf16" else None
    graph = capture(case.model, case.example_inputs, dtype=dtype)
    items = len(graph.blocks)
    plan = replace(
        make_plan(
            graph.fingerprint, global_batch=64, pp=4, dp=2, tp=2, num_microbatches=8, zero=1,
            precision=precision, regions=_recomputing(graph), schedule="1f1b",
            stages=stages_at(graph, (0, 2, items // 2, items - 1)),
        )
    )  # fmt: skip
    source = ModelSource(kind="zoo", name=name, seq_len=case.seq_len)
    path = saved(plan, source, tmp_path / "plan.json")
    assert main(["verify", path, "--ranks", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["ranks"]) == (True, 4)
    assert {"pp 4 -> 2", "dp 2 -> 1", "stages 4 -> 2"} <= set(found["cuts"])


def _recomputing(graph: OpGraph):
    """Regions in which half of the blocks of each kind are recomputed."""
    half = {block.path for blocks in graph.kinds.values() for block in blocks[len(blocks) // 2 :]}
    return greedy_regions(graph, 2, frozenset(half))
