"""Every strategy of every operator gives the results and gradients of one device."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoplan.sharding.rules.registry import RULES
from tests.rules import (
    batch_norm_calls,
    dim_calls,
    elementwise_calls,
    expert_calls,
    image_calls,
    lookup_calls,
    sample_calls,
    spectral_calls,
    sum_calls,
    token_calls,
    vector_calls,
)
from tests.rules.draw import Draw
from tests.rules.oracle import Example, check_all_strategies

CALLS = {
    **batch_norm_calls.CALLS,
    **dim_calls.CALLS,
    **elementwise_calls.CALLS,
    **expert_calls.CALLS,
    **image_calls.CALLS,
    **lookup_calls.CALLS,
    **sample_calls.CALLS,
    **spectral_calls.CALLS,
    **sum_calls.CALLS,
    **token_calls.CALLS,
    **vector_calls.CALLS,
}
DEMANDING = set(CALLS) - set(elementwise_calls.CALLS)


def test_every_rule_has_examples():
    assert set(CALLS) == set(RULES)


@pytest.mark.parametrize("target", sorted(elementwise_calls.CALLS))
@settings(deadline=None, max_examples=6)
@given(data=st.data())
def test_elementwise_strategies_equal_one_device(target, data):
    draw = Draw(data)
    check_all_strategies(CALLS[target](draw, target), draw.ranks)


@pytest.mark.parametrize("target", sorted(DEMANDING))
@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.data_too_large])
@given(data=st.data())
def test_strategies_equal_one_device(target, data):
    draw = Draw(data)
    check_all_strategies(CALLS[target](draw, target), draw.ranks)


def test_gradients_scaled_by_frequency_see_all_indices():
    table = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    ids = torch.tensor([[0, 0, 1], [0, 1, 2]])
    made = Example("aten.embedding.default", (table, ids, -1, True))
    assert check_all_strategies(made, 2) == ("replicate", "m")


def test_a_strided_convolution_is_split_by_samples():
    """Window 7x7, stride 2, margin 3, as at the beginning of a ResNet."""
    x, weight = torch.randn(4, 2, 9, 9), torch.randn(4, 2, 7, 7)
    tensors = [part.double().requires_grad_() for part in (x, weight)]
    made = Example("aten.conv2d.default", (*tensors, None, [2, 2], [3, 3]))
    assert check_all_strategies(made, 2) == ("replicate", "b", "n", "c")


def test_a_depthwise_convolution_is_split_by_channels():
    x, weight, bias = torch.randn(3, 4, 5, 5), torch.randn(8, 1, 3, 3), torch.randn(8)
    tensors = [part.double().requires_grad_() for part in (x, weight, bias)]
    made = Example("aten.conv2d.default", (*tensors, [1, 1], [1, 1], [1, 1], 4))
    assert check_all_strategies(made, 4) == ("replicate", "g")
    assert check_all_strategies(made, 3) == ("replicate", "b")
