"""A structural clone of a model whose tensors are fake.

The clone has the modules, hooks and attributes of the model, so that tracing can never change the
original; its parameters and buffers are FakeTensors on the CPU, so that it costs no memory. Tied
tensors stay tied.
"""

from __future__ import annotations

import copy
from itertools import chain

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from autoplan.errors import UnsupportedModelError


def clone_on_fakes(
    model: nn.Module, mode: FakeTensorMode, dtype: torch.dtype | None = None
) -> nn.Module:
    """Clones ``model``; floating parameters are cast to ``dtype``, buffers keep theirs.

    Raises:
        UnsupportedModelError: uninitialised (lazy) parameters, or a model that cannot be copied.
    """
    memo: dict[int, torch.Tensor] = {}
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer)):
            raise UnsupportedModelError(
                f"{name} is not initialised yet; run the model once before planning it"
            )
        memo[id(tensor)] = _fake_like(tensor, mode, dtype)
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot be copied ({type(error).__name__}: {error}); "
            "keep locks, streams and open files out of its attributes"
        ) from error


def _fake_like(
    tensor: torch.Tensor, mode: FakeTensorMode, dtype: torch.dtype | None
) -> torch.Tensor:
    is_parameter = isinstance(tensor, nn.Parameter)
    cast = dtype if dtype and is_parameter and tensor.is_floating_point() else tensor.dtype
    with mode:
        fake = torch.empty_strided(tensor.size(), tensor.stride(), dtype=cast, device="cpu")
    return nn.Parameter(fake, requires_grad=tensor.requires_grad) if is_parameter else fake
