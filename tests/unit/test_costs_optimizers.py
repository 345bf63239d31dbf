"""The optimizer table against torch's own optimizers, watched kernel by kernel."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autoplan.runtime.live_bytes import LiveBytes
from cost_models.optimizers import (
    OPTIMIZERS,
    PRICED,
    one_tensor_bytes,
    optimizer,
    state_bytes,
)

ELEMENTS = 1 << 12
OPTIONS = {"foreach": True, "weight_decay": 0.1, "lr": 0.1}
MAKERS = {
    "adamw": lambda p: torch.optim.AdamW(p, **OPTIONS),
    "adam": lambda p: torch.optim.Adam(p, **OPTIONS),
    "sgd": lambda p: torch.optim.SGD(p, **OPTIONS),
    "sgd-momentum": lambda p: torch.optim.SGD(p, momentum=0.9, **OPTIONS),
    "adagrad": lambda p: torch.optim.Adagrad(p, **OPTIONS),
    "rmsprop": lambda p: torch.optim.RMSprop(p, **OPTIONS),
}


def weights(tree) -> list[torch.Tensor]:
    return [
        leaf
        for leaf in tree_leaves(tree)
        if isinstance(leaf, torch.Tensor) and leaf.numel() == ELEMENTS
    ]


class Traffic(TorchDispatchMode):
    """Counts full-size tensors that kernels read, write in place, and allocate."""

    def __init__(self):
        super().__init__()
        self.moved = 0
        self.allocated = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        read = weights((args, kwargs))
        written = [
            tensor
            for formal, actual in zip(func._schema.arguments, args, strict=False)
            if formal.alias_info and formal.alias_info.is_write
            for tensor in weights(actual)
        ]
        known = {tensor.data_ptr() for tensor in read}
        fresh = [tensor for tensor in weights(result) if tensor.data_ptr() not in known]
        self.moved += len(read) + len(written) + len(fresh)
        self.allocated += len(fresh)
        return result


def test_every_optimizer_is_checked():
    assert set(MAKERS) == set(OPTIMIZERS)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_table_is_what_torch_does(name):
    parameter = torch.nn.Parameter(torch.randn(ELEMENTS))
    optimizer = MAKERS[name]([parameter])
    parameter.grad = torch.randn(ELEMENTS)
    optimizer.step()
    parameter.grad = torch.randn(ELEMENTS)
    with Traffic() as traffic:
        optimizer.step()
    state_bytes = 4 * len(weights(list(optimizer.state[parameter].values())))
    needs = OPTIMIZERS[name]
    assert needs.state_bytes == state_bytes
    assert needs.traffic_bytes == 4 * traffic.moved
    assert needs.temporary_bytes == 4 * traffic.allocated


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_tensor_after_the_other_is_what_torch_does(name):
    """Of equal tensors, so that what is left of the one before is as large."""
    parameters = [torch.nn.Parameter(torch.randn(ELEMENTS)) for _ in range(3)]
    optimizer = MAKERS[name](parameters)
    for group in optimizer.param_groups:
        group["foreach"] = False
    for parameter in parameters:
        parameter.grad = torch.randn(ELEMENTS)
    optimizer.step()
    with LiveBytes() as live:
        live.watch(weights([*parameters, [p.grad for p in parameters]]))
        live.watch(weights([list(state.values()) for state in optimizer.state.values()]))
        live.restart()
        before = live.peak_bytes
        optimizer.step()
    passed = live.peak_bytes - before  # numbers of steps besides
    assert passed == pytest.approx(one_tensor_bytes(name) * ELEMENTS, abs=16)


@pytest.mark.parametrize("shape", [(48, 80), (3, 48, 80), (80,)])
def test_adafactor_keeps_rows_and_columns_as_torch_does(shape):
    parameter = torch.nn.Parameter(torch.randn(shape))
    adafactor = torch.optim.Adafactor([parameter], lr=0.1)
    parameter.grad = torch.randn(shape)
    adafactor.step()
    kept = sum(
        value.nbytes
        for name, value in adafactor.state[parameter].items()
        if name in ("row_var", "col_var", "variance") and value is not None
    )
    assert state_bytes("adafactor", shape) == kept


def test_adafactor_of_a_large_matrix_is_next_to_nothing():
    """Shazeer and Stern 2018: n + m in place of n m."""
    assert state_bytes("adafactor", (8192, 32768)) == 4 * (8192 + 32768)


def test_adafactor_of_a_matrix_moves_what_torch_moves():
    side = math.isqrt(ELEMENTS)
    parameter = torch.nn.Parameter(torch.randn(side, side))
    adafactor = torch.optim.Adafactor([parameter], **OPTIONS)
    for _ in range(2):
        parameter.grad = torch.randn(side, side)
        with Traffic() as traffic:
            adafactor.step()
    assert PRICED["adafactor"].traffic_bytes == 4 * traffic.moved
    assert PRICED["adafactor"].temporary_bytes == 4 * traffic.allocated


def test_moments_of_one_byte_have_a_scale_for_each_block():
    """By hand: 1,024 blocks of 256, two moments of one byte, two scales of four."""
    assert state_bytes("adamw-8bit", (512, 512)) == 2 * 262_144 + 2 * 4 * 1024
    assert state_bytes("adamw-8bit", (64, 64)) == 2 * 4096 + 2 * 4 * 16
    assert state_bytes("adamw-8bit", (4095,)) == 8 * 4095


@settings(deadline=None, max_examples=50)
@given(
    name=st.sampled_from(sorted(PRICED)),
    shape=st.lists(st.integers(1, 300), min_size=1, max_size=3),
)
def test_state_is_at_most_that_of_adam(name, shape):
    elements = math.prod(shape)
    largest = 8 * elements + (8 if PRICED[name].moments == "factored" else 0)
    assert 0 <= state_bytes(name, shape) <= largest
    if PRICED[name].moments == "whole":
        assert state_bytes(name, shape) == PRICED[name].state_bytes * elements


def test_unknown_optimizers_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'lion'; known: adamw, .*, adafactor, adamw-8bit"):
        optimizer("lion")
