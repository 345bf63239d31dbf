"""What a block holds from its forward to its backward, measured on real tensors."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from autoplan.codegen.emitted import Emitted
from autoplan.runtime.collectives import AxisGroup, reduce_over
from tests.parity.simulate import build_sharded
from tests.parity.threads import on_ranks


class Made(TorchDispatchMode):
    """Storages of what operators returned, as long as something else holds them."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, Tensor):
                self.storages.add(tensor.untyped_storage())
        return result


def held_bytes(
    emitted: Emitted, model: nn.Module, batch: Mapping[str, Tensor], path: str
) -> list[int]:
    """On each rank of ``tp``: what enters one block as its first input, and what it then keeps.

    Weights, the result, and other inputs are not counted.
    """
    return on_ranks(emitted.tp, lambda axis: _held_bytes(emitted, model, batch, path, axis))


def _held_bytes(
    emitted: Emitted,
    model: nn.Module,
    batch: Mapping[str, Tensor],
    path: str,
    axis: AxisGroup,
) -> int:
    root = build_sharded(emitted, model, axis)
    block, values = root.get_submodule(path), [batch[given.target] for given in emitted.inputs]
    entered: list[Tensor] = []
    hook = block.register_forward_pre_hook(lambda _, args: entered.extend(args))
    root(*values, root.count(*values))
    hook.remove()
    entered = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in entered]
    gc.collect()
    with Made() as made:
        result = block(*entered)
    reduce_over(torch.zeros(()), axis)  # until all ranks have let go of the last message
    gc.collect()
    lasting = {t.untyped_storage()._cdata for t in (*block.parameters(), *entered, result)}
    kept = sum(s.nbytes() for s in made.storages if s._cdata not in lasting)
    return kept + entered[0].untyped_storage().nbytes()
