"""What a module returns without labels is what the model does; what it cannot return is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autoplan
from autoplan.codegen.evaluation import emit_evaluation
from autoplan.codegen.pipeline import choices_of, emit_program
from autoplan.errors import PlanError, UnsupportedModelError
from autoplan.runtime.evaluation_programs import KEPT_PROGRAMS
from autoplan.runtime.module import ParallelModule
from autoplan.runtime.parallelize import parallelize
from autoplan.trace.capture import capture
from autoplan.trace.outputs import ModelForward
from tests.distributed.greedy import greedy_regions
from tests.distributed.plans import make_plan

ROWS = 4


class Classifier(nn.Module):
    """Returns its loss with labels; ``style`` says what else without."""

    def __init__(self, style: str = "tensor") -> None:
        super().__init__()
        self.style, self.up, self.down = style, nn.Linear(6, 8), nn.Linear(8, 5)
        self.drop, self.scale = nn.Dropout(0.5), nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor, labels: Tensor | None = None, doubled: bool = False) -> Any:
        hidden = self.drop(torch.relu(self.up(x)) * self.scale)
        scores = self.down(hidden)
        if labels is not None:
            return F.cross_entropy(scores, labels)
        if self.style == "last":
            return scores[:, -1:], None
        if self.style == "nested":
            return {"scores": [scores, {"hidden": hidden}], "rows": "all"}
        if self.style == "summed":
            return {"scores": scores, "norm": hidden.pow(2).sum()}
        if self.style == "alike":
            return scores @ scores.T
        if self.style == "parameter":
            return scores, self.scale
        if self.style == "object":
            return Found(scores)
        if self.style == "twice":
            return torch.cat([scores, -scores])
        if self.style == "size":
            return scores, len(x)
        return 2 * scores if doubled else scores


class Found:
    def __init__(self, scores: Tensor) -> None:
        self.scores = scores


def batch(rows: int = ROWS) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {"x": torch.randn(rows, 6), "labels": torch.randint(5, (rows,))}


def module_of(model: nn.Module, *, num_microbatches: int = 1) -> ParallelModule:
    graph = capture(model, batch())
    plan = make_plan(
        graph.fingerprint, global_batch=ROWS, num_microbatches=num_microbatches,
        regions=greedy_regions(graph, 1),
    )  # fmt: skip
    evaluation = capture(copy.deepcopy(model).eval(), batch())
    return parallelize(model, graph, plan, evaluation=evaluation)


def both(style: str, rows: int = ROWS, **others: Any) -> tuple[Any, Any]:
    """What the module returns of a batch in two microbatches, and the model."""
    model, x = Classifier(style), batch(rows)["x"]
    pm = module_of(model, num_microbatches=2).eval()
    model.eval()
    with torch.no_grad():
        return pm(x=x, **others), model(x, **others)


@pytest.mark.parametrize("rows", [1, 3, 4, 9])
def test_any_number_of_samples(rows):
    torch.testing.assert_close(*both("tensor", rows))


@pytest.mark.parametrize("rows", [0, 3, 4])
def test_samples_that_an_output_has_twice_keep_their_order(rows):
    torch.testing.assert_close(*both("twice", rows))


def test_containers_are_those_of_the_model():
    got, expected = both("nested")
    torch.testing.assert_close(got.pop("scores"), expected.pop("scores"))
    assert got == expected == {"rows": "all"}
    got, expected = both("last")
    torch.testing.assert_close(got[0], expected[0])
    assert got[1] is None


def test_other_arguments_of_the_model():
    torch.testing.assert_close(*both("tensor", doubled=True))


def test_programs_take_turns_on_the_same_modules():
    model = Classifier().eval()
    x = batch()["x"]
    pm = module_of(model)
    with torch.no_grad():
        for doubled in (False, True, False):
            torch.testing.assert_close(pm(x, doubled=doubled), model(x, doubled=doubled))


def test_equal_values_of_other_types_are_other_values():
    model, x = Scaled().eval(), batch()["x"]
    pm = module_of(model)
    with torch.no_grad():
        for scale in (1, 1.0, True, 1):
            signs, told = pm(x, scale=scale)
            expected, _ = model(x, scale=scale)
            assert told == repr(scale)
            torch.testing.assert_close(signs, expected)  # of the same dtype


class Scaled(nn.Module):
    """Without labels it returns the signs of its outputs, in the type of ``scale``."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 5)

    def forward(self, x: Tensor, labels: Tensor | None = None, scale: Any = 1) -> Any:
        scores = self.up(x)
        if labels is not None:
            return F.cross_entropy(scores, labels)
        return (scores > 0).long() * scale, repr(scale)


def test_programs_used_last_are_kept():
    model, x = Scaled().eval(), batch()["x"]
    pm = module_of(model)
    with torch.no_grad():
        for scale in range(KEPT_PROGRAMS):
            pm(x, scale=scale)
        kept = dict(pm._evaluator._programs._kept)
        pm(x, scale=0)
        assert pm(x, scale=9)[1] == "9"
        assert pm(x, scale=0)[1] == "0"
    first, second, *_ = kept
    assert pm._evaluator._programs._kept[first] is kept[first]
    assert second not in pm._evaluator._programs._kept
    assert len(pm._evaluator._programs._kept) == KEPT_PROGRAMS


def test_a_loss_function_leaves_the_targets_out():
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 5))
    x, labels = batch().values()
    pm = autoplan.compile(
        model, (x, labels), loss_fn=F.cross_entropy, global_batch=ROWS, precision="fp32"
    )
    with torch.no_grad():
        torch.testing.assert_close(pm(x), model(x))
        torch.testing.assert_close(pm(input=x[:1]), model(x[:1]))
        torch.testing.assert_close(pm(x, None), model(x))
        torch.testing.assert_close(pm(input=x, targets=None), model(x))
        torch.testing.assert_close(pm(x, labels), F.cross_entropy(model(x), labels))


def test_labels_that_are_none_are_left_out():
    model, given = Classifier().eval(), batch()
    pm = module_of(model)
    with torch.no_grad():
        for called in (pm(given["x"], None), pm(**given | {"labels": None}), pm(given["x"])):
            torch.testing.assert_close(called, model(given["x"], None))
    assert len(pm._evaluator._programs._kept) == 1
    with pytest.raises(PlanError, match=r"'labels' is missing.*torch\.no_grad"):
        pm(given["x"], labels=None)
    with pytest.raises(PlanError, match="'labels' is a NoneType"):
        pm.train_step(given | {"labels": None})


class Asking(nn.Module):
    """Must be told that there are no labels."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 5)

    def forward(self, x: Tensor, labels: Tensor | None) -> Tensor:
        return self.up(x) if labels is None else F.cross_entropy(self.up(x), labels)


def test_a_model_without_a_default_is_told_of_no_labels():
    model, x = Asking().eval(), batch()["x"]
    pm = module_of(model)
    with torch.no_grad():
        torch.testing.assert_close(pm(x, labels=None), model(x, labels=None))


def test_plain_values_of_the_example_stay():
    model = Classifier().eval()
    example = batch() | {"doubled": True}
    pm = autoplan.compile(model, example, global_batch=ROWS, precision="fp32")
    with torch.no_grad():
        torch.testing.assert_close(pm(x=example["x"]), model(example["x"], doubled=True))


@pytest.mark.parametrize(
    ("style", "error", "message"),
    [
        ("object", UnsupportedModelError, r"a Found, in which no tensors.*register_dataclass"),
        ("parameter", UnsupportedModelError, r"its parameter scale.*state_dict"),
        ("summed", UnsupportedModelError, r"/sum is a sum over the batch.*one microbatch"),
        ("alike", UnsupportedModelError, r"mixes samples.*one microbatch"),
        ("size", UnsupportedModelError, r"beside tensors differs at batch 2 and 4"),
    ],
)
def test_what_cannot_be_returned_is_refused_by_name(style, error, message):
    with pytest.raises(error, match=message):
        both(style)


@pytest.mark.parametrize("style", ["summed", "alike"])
def test_samples_that_meet_are_fed_at_once(style):
    model, x = Classifier(style), batch()["x"]
    pm = module_of(model).eval()
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(pm(x=x), model(x))
        with pytest.raises(PlanError, match=r"takes 4 samples at once"):
            pm(x=x[:3])
        torch.testing.assert_close(pm(x=x), model(x))


def test_wrong_calls_are_refused():
    pm, given = module_of(Classifier()), batch()
    with pytest.raises(PlanError, match=r"'labels' is missing.*torch\.no_grad"):
        pm(x=given["x"])
    with torch.no_grad():
        with pytest.raises(UnsupportedModelError, match=r"drop/dropout.*call pm\.eval\(\)"):
            pm(x=given["x"])
        pm.eval()
        with pytest.raises(PlanError, match=r"'lables' is no argument.*'x', 'labels'"):
            pm(x=given["x"], lables=given["labels"])
        with pytest.raises(UnsupportedModelError, match="input 'doubled' is a list; pass tensors"):
            pm(x=given["x"], doubled=[True])
        with pytest.raises(PlanError, match="by position"):
            pm(given["x"], x=given["x"])
        with pytest.raises(PlanError, match=r"'x' holds integer values but.*feed float32"):
            pm(x=given["x"].long())
        with pytest.raises(PlanError, match=r"'x' has shape \(\), but samples lie along its dim 0"):
            pm(x=torch.tensor(1.0))
        assert pm(x=given["x"]).shape == (ROWS, 5)


def test_an_evaluation_that_fails_ends_no_training():
    pm, given = module_of(Classifier()).eval(), batch()
    with torch.no_grad(), pytest.raises(IndexError, match="out of bounds"):
        pm(x=given["x"], labels=given["labels"] + 5)
    assert torch.isfinite(pm.train().train_step(given))


def test_units_of_zero_are_read_inside_alone():
    """A weight that only the evaluation reads from outside of its block would not be gathered."""
    model = Peeking()
    graph = capture(model, batch())
    plan = make_plan(graph.fingerprint, global_batch=ROWS, regions=greedy_regions(graph, 1))
    found, _ = ModelForward(model, dtype=None).capture(
        {"x": batch()["x"]},
        batch_dims={"x": 0},
        trains=True,
        global_batch=ROWS,
        paths=[block.path for block in graph.blocks],
        unfuses_attention=False,
    )
    with pytest.raises(UnsupportedModelError, match=r"layers\.1\.up\.weight from outside"):
        emit_evaluation(found, choices_of(graph, plan), emit_program(graph, plan), "peeking")


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.up(x))


class Peeking(nn.Module):
    """Reads a weight of its second layer once more where it has no labels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Residual() for _ in range(3))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        if labels is None:
            second: Any = self.layers[1]
            return x @ second.up.weight
        return F.cross_entropy(x, labels)
