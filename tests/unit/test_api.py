"""From a model to a plan and to a running module, on one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import autoplan
from autoplan import plan_io
from autoplan.plan import MeshPlan
from tests.robustness import models

ROOT = Path(__file__).parent.parent.parent


def planned(**changes: object) -> autoplan.Plan:
    model, inputs = models.small()
    options = {"cluster": "cpu-gloo", "global_batch": 8, "precision": "fp32"} | changes
    return autoplan.plan(model, inputs, **options)


def test_public_names() -> None:
    assert callable(autoplan.plan)
    assert callable(autoplan.compile)
    for name in autoplan.__all__:
        assert getattr(autoplan, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = autoplan.no_such_name


def test_importing_autoplan_loads_no_torch() -> None:
    program = "import sys, autoplan; autoplan.load_plan; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False, timeout=60)
    assert done.returncode == 0


def test_the_same_question_gives_the_same_bytes() -> None:
    assert plan_io.to_json(planned()) == plan_io.to_json(planned())


def test_pins_are_honoured() -> None:
    plan = planned(gpus_per_node=4, pins={"tp": 2, "zero": "1", "microbatch": 2})
    assert plan.mesh == MeshPlan(dp=2, tp=2)
    assert (plan.zero, plan.microbatch, plan.num_microbatches) == (1, 2, 2)
    assert (plan.job.pins.tp, plan.job.model.kind) == (2, "object")


def test_placements_and_memory_are_honoured() -> None:
    asked = {"gpus_per_node": 4, "placements": {"layers.*.weight": "Shard(1)"}}
    plan = planned(**asked, memory_limit="1GiB", memory_margin="10%")
    assert plan.mesh.tp > 1
    placed = {name: place for region in plan.regions for name, place in region.parameters.items()}
    assert {place for name, place in placed.items() if "weight" in name} == {"Shard(1)"}
    assert plan.estimate.memory_limit_bytes == int(0.9 * 2**30)
    with pytest.raises(autoplan.PlanError, match="memory_limit: decided by the plan"):
        autoplan.compile(*models.small(), plan=plan, memory_limit=0.5)


def test_memory_follows_the_precision() -> None:
    bf16, fp32 = (
        planned(precision=name, global_batch=2**18, pins={"tp": 1, "microbatch": 2**15})
        for name in ("bf16", "fp32")
    )
    halved = fp32.estimate.stages[0].memory.activations / 2
    assert bf16.estimate.stages[0].memory.activations == pytest.approx(halved, rel=0.1)


def test_progress_only_grows_and_names_its_phases() -> None:
    calls: list[tuple[float, str]] = []
    planned(progress=lambda fraction, what: calls.append((fraction, what)))
    fractions = [fraction for fraction, _ in calls]
    assert fractions == sorted(fractions)
    assert 0 <= fractions[0] <= fractions[-1] <= 1
    assert all(what for _, what in calls)


def test_a_plan_file_runs(tmp_path: Path) -> None:
    model, inputs = models.small()
    path = tmp_path / "plan.json"
    autoplan.save_plan(planned(gpus_per_node=1, global_batch=4), path)
    pm = autoplan.compile(model, inputs, plan=path)
    batch = {"x": torch.randn(4, 8), "y": torch.randn(4, 8)}
    loss = pm.train_step(batch)
    expected = model(**batch)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(dict(pm.named_parameters())[name].grad, parameter.grad)


def test_compile_of_a_factory() -> None:
    pm = autoplan.compile("tests.robustness.models:small", global_batch=2, precision="fp32")
    assert (pm.data_rank, pm.data_world) == (0, 1)
    assert pm.plan.job.model.kind == "factory"


def test_saved_plans_are_json(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = planned()
    autoplan.save_plan(plan, path)
    assert json.loads(path.read_text())["fingerprint"] == plan.fingerprint
    assert autoplan.load_plan(path) == plan


def test_a_plan_that_cannot_run_says_so() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.AlphaDropout(0.1), torch.nn.Linear(8, 8)
    )
    inputs = (torch.randn(2, 8), torch.randn(2, 8))
    options = {"cluster": "cpu-gloo", "global_batch": 8, "loss_fn": torch.nn.functional.mse_loss}
    (warning,) = autoplan.plan(model, inputs, **options).warnings
    assert "alpha_dropout.default with p=0.1 at 1" in warning
    model[1].p = 0.0
    assert autoplan.plan(model, inputs, **options).warnings == ()


def test_tokens_follow_the_inputs_given() -> None:
    options = {"cluster": "cpu-gloo", "gpus_per_node": 1, "global_batch": 2, "precision": "fp32"}
    shapes = {"input_ids": (2, 64), "labels": (2, 64)}
    plan = autoplan.plan("gpt2", inputs=shapes, **options)
    assert plan.estimate.tokens_per_s == pytest.approx(64 * plan.estimate.samples_per_s)


def test_an_optimizer_is_a_name() -> None:
    with pytest.raises(autoplan.PlanError, match=r"optimizer .* is no name; choose from"):
        planned(optimizer=torch.optim.AdamW)
