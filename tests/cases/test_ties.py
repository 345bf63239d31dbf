"""A tie that is lost between planning on ``meta`` and training is noticed; tied again it trains.

``nn.Module.to_empty`` makes two parameters of one, each of which would have part of the gradient.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch

import autoplan
from autoplan.plan import Plan
from tests.parity.models import GPT, initialise, language_batch

BATCH = 4


def batch() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return language_batch(BATCH)


def planned(model: torch.nn.Module) -> Plan:
    job = {"gpus_per_node": 1, "global_batch": BATCH, "precision": "fp32"}
    return autoplan.plan(model, batch(), cluster="cpu-gloo", **job)


@cache
def planned_on_meta() -> Plan:
    """Within the ``with`` block in which the model is built."""
    with torch.device("meta"):
        return planned(GPT(tied=True))


def materialised() -> GPT:
    """A tied model that was built on ``meta`` and given memory."""
    with torch.device("meta"):
        model = GPT(tied=True)
    model.to_empty(device="cpu")
    assert model.head.weight is not model.tokens.weight
    return model


def test_a_cut_tie_is_another_model_than_the_one_that_was_planned() -> None:
    model = initialise(materialised(), torch.float32)
    with pytest.raises(autoplan.PlanError, match="another model"):
        autoplan.compile(model, batch(), plan=planned_on_meta())


def test_a_default_device_around_changes_no_plan() -> None:
    assert planned_on_meta() == planned(GPT(tied=True))


def test_tied_again_it_trains_as_one_parameter() -> None:
    plan = planned_on_meta()
    model = materialised()
    model.head.weight = model.tokens.weight
    initialise(model, torch.float32)
    pm = autoplan.compile(model, batch(), plan=plan)
    loss = pm.train_step(batch())
    expected = model(**batch())
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    gradients = {name: parameter.grad for name, parameter in pm.named_parameters()}
    assert sum("tokens" in name or "head" in name for name in gradients) == 1
    torch.testing.assert_close(gradients["tokens.weight"], model.tokens.weight.grad)
    assert {"tokens.weight", "head.weight"} <= set(pm.state_dict())
