"""Bad input ends in one line that says what is wrong, where and what to do, and leaves no file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import autoplan
from autoplan.cli import main
from tests.robustness import models

FACTORY = "tests.robustness.models:"


@pytest.fixture
def output(tmp_path: Path) -> Iterator[str]:
    """Where the plan would go; nothing may be there, nor beside it, after the failure."""
    folder = tmp_path / "plans"
    folder.mkdir()
    yield str(folder / "plan.json")
    assert list(folder.iterdir()) == []


def refusal(capsys: pytest.CaptureFixture, output: str, model: str, *options: str) -> str:
    """The one line on stderr of ``autoplan plan`` that must exit with 1."""
    assert run(model, output, *options) == 1
    return one_line(capsys)


def run(model: str, output: str, *options: str) -> int:
    request = ["plan", model, "-o", output, *options]
    if "--cluster" not in options:
        request += ["--cluster", "dgx-h100"]
    if "--global-batch" not in options:
        request += ["--global-batch", "64"]
    return main(request)


def one_line(capsys: pytest.CaptureFixture) -> str:
    """The error, which follows nothing but lines of progress."""
    printed = capsys.readouterr()
    *progress, line = printed.err.splitlines()
    assert printed.out == ""
    assert line.startswith("error: ")
    assert all(re.match(r"\d+ % ", other) for other in progress)
    return line


def test_unknown_model(capsys: pytest.CaptureFixture, output: str) -> None:
    line = refusal(capsys, output, "gpt2-xxl")
    assert "'gpt2-xxl'" in line
    assert "did you mean 'gpt2-xl'" in line


def test_unknown_cluster(capsys: pytest.CaptureFixture, output: str) -> None:
    line = refusal(capsys, output, "gpt2", "--cluster", "dgx-h10")
    assert "'dgx-h10'" in line
    assert "did you mean 'dgx-h100'" in line


def test_unknown_pin(capsys: pytest.CaptureFixture, output: str) -> None:
    line = refusal(capsys, output, "gpt2", "--pin", "zeroo=3")
    assert "'zeroo'" in line
    assert "did you mean 'zero'" in line


def test_tp_that_does_not_divide_the_devices(capsys: pytest.CaptureFixture, output: str) -> None:
    line = refusal(capsys, output, FACTORY + "small", "--pin", "tp=3")
    assert "tp=3" in line
    assert "1, 2, 4, 8" in line


def test_tp_that_divides_neither_heads_nor_tokens(
    capsys: pytest.CaptureFixture, output: str
) -> None:
    line = refusal(capsys, output, "vit-b16", "--pin", "tp=8")
    assert "tp=8" in line
    assert "tp can be" in line


def test_batch_that_is_not_divisible(capsys: pytest.CaptureFixture, output: str) -> None:
    options = ("--global-batch", "63", "--pin", "dp=8")
    line = refusal(capsys, output, FACTORY + "small", *options)
    assert "63" in line
    assert "56 or 64" in line


def test_pins_that_exclude_each_other(capsys: pytest.CaptureFixture, output: str) -> None:
    line = refusal(capsys, output, FACTORY + "small", "--pin", "dp=4", "--pin", "tp=4")
    assert "dp=4" in line
    assert "tp=4" in line


def test_factory_that_raises(capsys: pytest.CaptureFixture, output: str) -> None:
    line = refusal(capsys, output, FACTORY + "raises")
    assert "raises" in line
    assert "RuntimeError: weights not found" in line


@pytest.mark.parametrize("name", ["missing", "returns_text"])
def test_factory_that_is_none(capsys: pytest.CaptureFixture, output: str, name: str) -> None:
    assert name in refusal(capsys, output, FACTORY + name)


def test_module_that_cannot_be_imported(capsys: pytest.CaptureFixture, output: str) -> None:
    assert "no_such_module" in refusal(capsys, output, "no_such_module:factory")


@pytest.mark.parametrize(
    "content", ["", "{", "[1, 2]", "{}", '{"model_type": "no-such-type"}', "\0\xff", '"gpt2"']
)
def test_config_that_is_not_one(
    capsys: pytest.CaptureFixture, output: str, tmp_path: Path, content: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(content, encoding="latin-1")
    assert "config.json" in refusal(capsys, output, str(path))


def test_config_that_is_missing(capsys: pytest.CaptureFixture, output: str) -> None:
    assert "no/such/config.json" in refusal(capsys, output, "no/such/config.json")


def test_input_that_the_model_does_not_have(capsys: pytest.CaptureFixture, output: str) -> None:
    line = refusal(capsys, output, FACTORY + "small", "--input", "z=2x8")
    assert "--input z" in line
    assert "x, y" in line


def test_sequence_length_of_a_factory_with_inputs(
    capsys: pytest.CaptureFixture, output: str
) -> None:
    line = refusal(capsys, output, FACTORY + "small", "--seq-len", "512")
    assert "--seq-len 512" in line
    assert "--input" in line


def test_model_that_does_not_fit(capsys: pytest.CaptureFixture, output: str) -> None:
    assert run(FACTORY + "huge", output, "--gpus-per-node", "1") == 2
    line = one_line(capsys)
    assert "optimizer state" in line or "parameters" in line or "master weights" in line
    assert any(change in line for change in ("node", "GPU", "--gpus-per-node"))


def test_output_folder_that_is_missing(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    assert run("gpt2", str(folder / "plan.json")) == 1
    assert str(folder) in one_line(capsys)
    assert not folder.exists()


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"version": 99}', "\0"])
def test_plan_file_that_is_not_one(
    capsys: pytest.CaptureFixture, tmp_path: Path, content: str
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(content)
    assert main(["report", str(path)]) == 1
    one_line(capsys)


def test_plan_file_that_is_missing(capsys: pytest.CaptureFixture) -> None:
    assert main(["report", "no/such/plan.json"]) == 1
    assert "no/such/plan.json" in one_line(capsys)


def compiled(case: tuple[torch.nn.Module, dict[str, torch.Tensor]]) -> autoplan.ParallelModule:
    """A module on one process."""
    return autoplan.compile(*case, global_batch=4, precision="fp32")


def test_plan_of_another_model() -> None:
    plan = compiled(models.small()).plan
    model, inputs = models.wider()
    with pytest.raises(autoplan.PlanError, match="another model"):
        autoplan.compile(model, inputs, plan=plan)


def test_plan_of_another_number_of_ranks() -> None:
    model, inputs = models.small()
    plan = autoplan.plan(
        model, inputs, cluster="cpu-gloo", gpus_per_node=2, global_batch=4, precision="fp32"
    )
    with pytest.raises(autoplan.PlanError, match="2 ranks"):
        autoplan.compile(model, inputs, plan=plan)


def test_options_that_the_plan_decides() -> None:
    model, inputs = models.small()
    plan = compiled((model, inputs)).plan
    with pytest.raises(autoplan.PlanError, match="global_batch"):
        autoplan.compile(model, inputs, plan=plan, global_batch=8)


def test_compile_without_a_batch() -> None:
    with pytest.raises(autoplan.PlanError, match="global_batch="):
        autoplan.compile(*models.small())


def test_compile_without_weights() -> None:
    with pytest.raises(autoplan.PlanError, match=r"layers\.0\.weight is on the meta device"):
        autoplan.compile(*models.huge(), global_batch=4)


def test_module_without_inputs() -> None:
    with pytest.raises(autoplan.PlanError, match="give example_inputs"):
        autoplan.plan(models.small()[0], cluster="cpu-gloo", global_batch=4)


def test_checkpoint_of_another_model(tmp_path: Path) -> None:
    compiled(models.small()).save(tmp_path / "checkpoint")
    with pytest.raises(autoplan.CheckpointError):
        compiled(models.wider()).load(tmp_path / "checkpoint")


def test_last_batch_of_another_size() -> None:
    pm = compiled(models.small())
    batch = {"x": torch.zeros(3, 8), "y": torch.zeros(3, 8)}
    with pytest.raises(autoplan.PlanError, match="3"):
        pm.train_step(batch)
    assert all(parameter.grad is None for parameter in pm.parameters())


def test_plan_file_with_an_impossible_mesh(tmp_path: Path) -> None:
    pm = compiled(models.small())
    path = tmp_path / "plan.json"
    autoplan.save_plan(pm.plan, path)
    document = json.loads(path.read_text())
    document["mesh"]["dp"] = 7
    path.write_text(json.dumps(document))
    with pytest.raises(autoplan.PlanError, match="mesh"):
        autoplan.load_plan(path)
    with pytest.raises(autoplan.PlanError):
        autoplan.save_plan(replace(pm.plan, zero=9), tmp_path / "other.json")
    assert not (tmp_path / "other.json").exists()
