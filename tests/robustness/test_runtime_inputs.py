"""What is fed wrongly is refused in one line that says what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from autoplan.errors import PlanError, UnsupportedModelError
from autoplan.runtime.parallelize import parallelize
from autoplan.trace.capture import capture
from tests.distributed.greedy import greedy_regions
from tests.distributed.handmade import BATCH, Cell, make_net, net_batch, parallel_net
from tests.distributed.plans import make_plan

CELL = Cell(dtype=torch.float32)


def fed(change) -> str:
    """The error of a step on a batch after ``change``."""
    pm, batch = parallel_net(CELL), net_batch(BATCH, torch.float32)
    with pytest.raises(PlanError) as error:
        pm.train_step(change(batch))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_batch_of_another_size():
    message = fed(lambda batch: {name: value[:-1] for name, value in batch.items()})
    assert "'x' has shape (15, 8)" in message
    assert "global batch 16 feeds (16, 8)" in message
    assert "drop_last=True" in message


def test_other_inputs():
    expected = "feed the inputs that the model was planned for, 'x', 'labels'"
    missing = fed(lambda batch: {"x": batch["x"]})
    assert missing == f"'labels' is missing: {expected}"
    extra = fed(lambda batch: batch | {"mask": batch["labels"]})
    assert extra == f"'mask' is not an input: {expected}"
    assert "3 inputs by position" in fed(lambda batch: (*batch.values(), batch["x"]))
    assert fed(lambda batch: batch["x"]) == missing
    assert "'labels' is a list" in fed(lambda batch: batch | {"labels": [1]})


def test_values_of_another_kind():
    message = fed(lambda batch: batch | {"labels": batch["labels"].float()})
    assert "'labels' holds floating-point values" in message
    assert "feed int64" in message
    assert "feed float32" in fed(lambda batch: batch | {"x": batch["x"] > 0})


def test_numbers_of_another_width_are_cast():
    pm, batch = parallel_net(CELL), net_batch(BATCH, torch.float32)
    assert torch.equal(pm.train_step(batch | {"x": batch["x"].double()}), pm.train_step(batch))


def test_a_step_after_refused_inputs_is_right():
    pm, batch = parallel_net(CELL), net_batch(BATCH, torch.float32)
    with pytest.raises(PlanError):
        pm.train_step({})
    expected = make_net(CELL)(**batch)
    assert pm.train_step(batch).item() == pytest.approx(expected.item(), rel=1e-5)


def test_backward_needs_one_microbatch():
    pm = parallel_net(replace(CELL, num_microbatches=2))
    with pytest.raises(PlanError, match=r"2 microbatches.*use train_step"):
        pm(**net_batch(BATCH, torch.float32))


def test_load_state_dict_points_to_load():
    with pytest.raises(PlanError, match=r"use load\(path\)"):
        parallel_net(CELL).load_state_dict({})


def test_inputs_by_position():
    pm, batch = parallel_net(CELL), net_batch(BATCH, torch.float32)
    by_name = pm.train_step(batch)
    assert torch.equal(pm.train_step((batch["x"], batch["labels"])), by_name)
    assert torch.equal(pm(batch["x"], batch["labels"]).detach(), by_name)
    assert torch.equal(pm(batch["x"], labels=batch["labels"]).detach(), by_name)
    with pytest.raises(PlanError, match="2 inputs by position"):
        pm(batch["x"], batch["labels"], labels=batch["labels"])


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 1)

    def forward(self, x, weight, labels):
        return ((self.out(x)[:, 0] - labels).square() * weight).sum()


def test_rows_of_a_batch_by_position_keep_their_order():
    model = Weighted()
    batch = {"labels": torch.randn(4), "weight": torch.rand(4), "x": torch.randn(4, 8)}
    graph = capture(model, batch)
    plan = make_plan(graph.fingerprint, global_batch=4, regions=greedy_regions(graph, 1))
    pm = parallelize(model, graph, plan)
    given = batch["x"], batch["weight"], batch["labels"]
    assert all(map(torch.equal, pm.shard_batch(given), given))
    expected = model(**batch).item()
    assert pm.train_step(pm.shard_batch(given)).item() == pytest.approx(expected, rel=1e-6)


def test_the_targets_of_a_loss_function_come_last():
    model = nn.Sequential(nn.Linear(8, 4), nn.Tanh())
    x, y = torch.randn(4, 8), torch.randn(4, 4)
    graph = capture(model, (x, y), loss_fn=nn.functional.mse_loss)
    plan = make_plan(graph.fingerprint, global_batch=4, regions=greedy_regions(graph, 1))
    pm = parallelize(model, graph, plan)
    expected = nn.functional.mse_loss(model(x), y)
    assert pm.train_step((x, y)).item() == pytest.approx(expected.item(), rel=1e-6)
    assert pm(x, y).item() == pytest.approx(expected.item(), rel=1e-6)
    assert pm(x, targets=y).item() == pytest.approx(expected.item(), rel=1e-6)
    with pytest.raises(PlanError, match="planned for"):
        pm.train_step((x,))


class Classifier(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(rate)
        self.out = nn.Linear(8, 4)

    def forward(self, x, labels):
        return nn.functional.cross_entropy(self.out(self.drop(x)), labels)


def classifier(model: nn.Module, **change):
    batch = {"x": torch.randn(4, 8), "labels": torch.randint(4, (4,))}
    graph = capture(model, batch)
    plan = make_plan(graph.fingerprint, global_batch=4, regions=greedy_regions(graph, 1))
    return parallelize(model, graph, replace(plan, **change)), batch


@pytest.mark.parametrize("training", [True, False])
def test_the_traced_mode_is_kept_where_it_matters(training):
    pm, _ = classifier(Classifier(0.5).train(training))
    assert pm.training is training
    pm.train(training)
    traced = r"drop.* was traced in training mode" if training else "traced in eval mode"
    with pytest.raises(UnsupportedModelError, match=traced):
        pm.train(not training)


def test_either_mode_where_both_are_equal():
    pm, batch = classifier(Classifier(0.0))
    with torch.no_grad():
        losses = {pm.train(mode)(**batch).item() for mode in (True, False)}
    assert len(losses) == 1
    assert not pm.training


def test_a_plan_of_another_model_or_for_more_axes():
    with pytest.raises(PlanError, match="made for another model"):
        classifier(Classifier(0.0), fingerprint="other")
    pp = replace(make_plan("", global_batch=4).mesh, pp=2)
    with pytest.raises(PlanError, match="the plan has pp = 2"):
        classifier(Classifier(0.0), mesh=pp)


def test_weights_on_meta_are_refused():
    with pytest.raises(PlanError, match=r"'out\.weight' is on the meta device"):
        classifier(Classifier(0.0).to("meta"))


def test_the_source_can_be_read(capsys):
    classifier(Classifier(0.0))[0].print_source()
    assert "aten.linear" in capsys.readouterr().out
