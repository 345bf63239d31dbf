"""What a model's name stands for, and what it is fed with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from autoplan import subject, zoo
from autoplan.errors import PlanError
from autoplan.job import ModelSource
from tests.robustness import models

FACTORY = "tests.robustness.models:small"
SMALL_CONFIG = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 32}


def test_names() -> None:
    assert subject.describe("gpt2", 64, None).kind == "zoo"
    assert subject.describe(FACTORY, None, {"x": (4, 8)}) == ModelSource(
        kind="factory", name=FACTORY, inputs=(("x", (4, 8)),)
    )
    assert subject.describe("some/config.json", None, None).kind == "config"
    assert subject.describe(models.small()[0], None, None) == ModelSource(
        kind="object", name="Regressor"
    )


def test_sizes_of_a_module_come_from_its_inputs() -> None:
    with pytest.raises(PlanError, match="example_inputs"):
        subject.describe(models.small()[0], 64, None)


def test_a_config_brings_token_inputs(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SMALL_CONFIG))
    case = subject.load(subject.describe(str(path), 16, None))
    assert case.seq_len == 16
    assert {tuple(value.shape) for value in case.example_inputs.values()} == {(2, 16)}


def test_input_shapes_replace_those_of_a_factory() -> None:
    case = subject.load(subject.describe(FACTORY, None, {"x": (6, 8)}))
    assert case.example_inputs["x"].shape == (6, 8)
    assert case.example_inputs["y"].shape == (2, 8)


def test_input_shapes_by_position() -> None:
    built = zoo.ModelUnderPlan(
        model=torch.nn.Linear(8, 8),
        example_inputs=(torch.zeros(2, 8), torch.zeros(2, 8)),
        loss_fn=torch.nn.functional.mse_loss,
    )
    reshaped = subject.reshaped(built, {"input": (3, 8), "targets": (4, 8)})
    assert [tuple(value.shape) for value in reshaped] == [(3, 8), (4, 8)]


@pytest.mark.parametrize("shape", [(6,), (6, 8, 1)])
def test_an_input_keeps_its_number_of_dims(shape: tuple[int, ...]) -> None:
    with pytest.raises(PlanError, match="--input x"):
        subject.load(subject.describe(FACTORY, None, {"x": shape}))


def test_a_plan_of_a_factory_never_runs_it() -> None:
    source = ModelSource(kind="factory", name="tests.robustness.models:raises")
    with pytest.raises(PlanError, match="give example_inputs"):
        subject.wrap(models.small()[0], None, None, source)


def test_a_module_takes_the_inputs_of_its_zoo_entry() -> None:
    source = ModelSource(kind="zoo", name="gpt2", seq_len=16)
    model = torch.nn.Linear(1, 1)
    case = subject.wrap(model, None, None, source)
    assert case.model is model
    assert {tuple(value.shape) for value in case.example_inputs.values()} == {(2, 16)}
