"""What a stage keeps of a tensor that it sent."""

from __future__ import annotations

import pytest
import torch

from autoplan.runtime.static_stage import StandIn


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4)])
def test_a_stand_in_has_no_values_and_the_gradient_of_the_original(shape):
    x = torch.randn(shape, requires_grad=True)
    stand_in = StandIn.apply(x * 2)
    assert stand_in.shape == shape
    assert stand_in.untyped_storage().nbytes() == x.element_size()
    assert not stand_in._is_view()
    gradient = torch.randn(shape)
    torch.autograd.backward([stand_in], [gradient])
    assert torch.equal(x.grad, 2 * gradient)


def test_a_stand_in_of_what_has_no_gradient():
    for original in (torch.tensor([True, False]), torch.arange(3), torch.randn(3)):
        stand_in = StandIn.apply(original)
        assert (stand_in.dtype, stand_in.shape) == (original.dtype, original.shape)
        assert not stand_in.requires_grad
