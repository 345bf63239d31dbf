"""A structural clone of a model whose tensors are fake.

The clone has the modules, hooks and attributes of the model, so that tracing can never change the
original; its parameters and buffers are FakeTensors on the CPU, so that it costs no memory. Tied
tensors stay tied.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from itertools import chain
from typing import Any

import torch
from torch import nn

from autoplan.errors import UnsupportedModelError
from autoplan.trace.torch_private import FakeTensorMode, fake_like, storage_id


class FakeClones:
    """Makes clones of one model that share one set of fake tensors.

    Args:
        model: the original.
        mode: of the fake tensors.
        dtype: floating parameters are cast to it, buffers keep theirs; None casts nothing.

    Raises:
        UnsupportedModelError: uninitialised (lazy) parameters, parameters without elements or of
            complex numbers.
    """

    def __init__(self, model: nn.Module, mode: FakeTensorMode, dtype: torch.dtype | None):
        self._model = model
        self._fakes: dict[int, torch.Tensor] = {}
        for name, tensor in chain(model.named_parameters(), model.named_buffers()):
            if isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer)):
                raise UnsupportedModelError(
                    f"{name} is not initialised yet; run the model once before planning it"
                )
            if isinstance(tensor, nn.Parameter) and not tensor.numel():
                raise UnsupportedModelError(
                    f"{name} is a parameter without elements, which PyTorch cannot train sharded; "
                    "leave it out or make it a buffer"
                )
            if isinstance(tensor, nn.Parameter) and tensor.is_complex():
                raise UnsupportedModelError(
                    f"{name} is a parameter of complex numbers, which is not supported; make it "
                    "real, with both parts in a last dim, and read it by torch.view_as_complex"
                )
            casts = isinstance(tensor, nn.Parameter) and tensor.is_floating_point()
            cast = dtype if dtype and casts else tensor.dtype
            self._fakes[id(tensor)] = fake_like(tensor, mode, cast)

    @property
    def memory(self) -> dict[int, str]:
        """Names of the original's parameters by the identity of their memory."""
        return {storage_id(p): name for name, p in self._model.named_parameters()}

    def clone(self) -> nn.Module:
        """A new clone.

        Raises:
            UnsupportedModelError: a model that cannot be copied.
        """
        try:
            return _copied(self._model, dict[int, Any](self._fakes))
        except Exception as error:
            raise UnsupportedModelError(
                f"{type(self._model).__name__} cannot be copied ({type(error).__name__}: {error}); "
                "keep locks, streams, open files and computed tensors out of its attributes "
                "(norms of weights: torch.nn.utils.parametrizations)"
            ) from error


_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.Size})
_STATE = ("__getstate__", "__setstate__")
_REDUCE = ("__reduce__", "__reduce_ex__")


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """``copy.deepcopy``, which takes most of its time for the many empty dicts of modules."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if id(value) in memo:
        return memo[id(value)]
    if kind is dict or kind is OrderedDict:
        made = memo[id(value)] = kind()
        for key, item in value.items():
            made[_copied(key, memo)] = _copied(item, memo)
        return made
    if kind is set and not value:
        made = memo[id(value)] = set()
        return made
    if isinstance(value, nn.Module) and _is_plain(type(value)):
        made = memo[id(value)] = type(value).__new__(type(value))
        state = value.__getstate__()
        made.__setstate__({name: _copied(item, memo) for name, item in state.items()})
        return made
    return copy.deepcopy(value, memo)


def _is_plain(kind: type[nn.Module]) -> bool:
    """Whether modules of a class have no way of their own to be copied."""
    return not hasattr(kind, "__deepcopy__") and all(
        getattr(kind, name) is getattr(base, name)
        for base, names in ((nn.Module, _STATE), (object, _REDUCE))
        for name in names
    )
