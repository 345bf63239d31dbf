"""The optimizer table against torch's own optimizers, watched kernel by kernel."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cost_models.optimizers import OPTIMIZERS

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
