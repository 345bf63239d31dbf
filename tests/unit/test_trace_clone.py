"""Clones of models: what is shared stays shared, and nothing is shared with the original."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from autoplan.trace.clone import FakeClones
from autoplan.trace.torch_private import FakeTensor, FakeTensorMode


class _Part(nn.Module):
    def __init__(self, table: dict):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.table = table
        self.empty = OrderedDict()


class _Whole(nn.Module):
    def __init__(self):
        super().__init__()
        table = {"sizes": [1, 2]}
        self.parts = nn.ModuleList([_Part(table), _Part(table)])
        self.parts[1].linear.weight = self.parts[0].linear.weight
        self.beside = [self.parts[0]]
        self.parts[0].__dict__["whole"] = self


def _clone(model: nn.Module) -> nn.Module:
    return FakeClones(model, FakeTensorMode(), torch.bfloat16).clone()


def test_shared_attributes_parts_and_parameters_stay_shared():
    clone = _clone(_Whole())
    first, second = clone.parts
    assert first.table is second.table
    assert first.linear.weight is second.linear.weight
    assert clone.beside[0] is first
    assert first.whole is clone


def test_nothing_is_shared_with_the_original():
    model = _Whole()
    clone = _clone(model)
    first, copied = model.parts[0], clone.parts[0]
    assert copied.table == first.table
    assert copied.table is not first.table
    assert copied.table["sizes"] is not first.table["sizes"]
    assert copied.empty is not first.empty
    assert type(copied.empty) is OrderedDict
    assert copied._forward_hooks is not first._forward_hooks
    assert isinstance(copied.linear.weight, FakeTensor)
    assert not isinstance(first.linear.weight, FakeTensor)


class _OwnCopy(nn.Module):
    def __deepcopy__(self, memo):
        made = _OwnCopy()
        made.copied = True
        return made


class _OwnState(nn.Module):
    def __getstate__(self):
        return {**super().__getstate__(), "handle": None}


def test_a_class_that_copies_itself_does():
    model = nn.Sequential(_OwnCopy(), _OwnState())
    model[1].handle = iter([])
    clone = _clone(model)
    assert clone[0].copied
    assert clone[1].handle is None
