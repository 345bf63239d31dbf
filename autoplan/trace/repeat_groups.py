"""Groups of submodules that look the same, as candidates for being traced once.

Members of a group have equal class trees, tensor names and metadata, aliasing, training flags and
attribute names. Plain attributes may differ (a layer index, a dropout probability): they are hidden
on the (cloned) modules, so that every read goes through ``nn.Module.__getattr__`` and can be seen.
Only the outermost groups of four or more members count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autoplan.trace.hidden import HIDDEN, hide
from autoplan.trace.plain_values import has_tensor, same

LEAST_MEMBERS = 4
LEAST_MODULES = 3
CORE_ATTRIBUTES = frozenset(nn.Module().__dict__)
_HOOKS = [
    name
    for name in CORE_ATTRIBUTES
    if "hook" in name
    and name != "_is_full_backward_hook"
    and not name.endswith(("_with_kwargs", "_always_called"))
]


@dataclass(frozen=True, slots=True)
class Group:
    """Modules of equal structure by path, in the order of the model; named by the first path."""

    members: tuple[tuple[str, nn.Module], ...]

    @property
    def name(self) -> str:
        return self.members[0][0]


def find_groups(root: nn.Module, banned: Collection[str]) -> tuple[Group, ...]:
    """The outermost groups of ``root`` that can be folded, but for those named in ``banned``."""
    found = _Structures()
    found.of(root)
    alike: dict[tuple, list[tuple[str, nn.Module]]] = defaultdict(list)
    for path, module in root.named_modules():
        if module is not root and found.is_safe(module) and found.size(module) >= LEAST_MODULES:
            alike[found.of(module), _aliasing(module)].append((path, module))
    groups = sorted(alike.values(), key=lambda members: -found.size(members[0][1]))
    return tuple(_outermost(groups, banned))


def _outermost(
    groups: Iterable[list[tuple[str, nn.Module]]], banned: Collection[str]
) -> Iterator[Group]:
    taken: set[int] = set()
    for members in groups:
        free = [(path, module) for path, module in members if id(module) not in taken]
        if len(free) < LEAST_MEMBERS or free[0][0] in banned:
            continue
        group = Group(tuple(free))
        if any("forward" in module.__dict__ for _, module in free) or not _hide_varying(group):
            continue
        taken.update(id(part) for _, module in free for part in module.modules())
        yield group


def parts_of(module: nn.Module) -> list[nn.Module]:
    """The module and all below it, duplicates included, in the order of ``named_modules``."""
    found = [module]
    for child in module._modules.values():
        if child is not None:
            found += parts_of(child)
    return found


def stored_tensors(module: nn.Module) -> list[torch.Tensor]:
    """Parameters and buffers of a module tree, duplicates included, in a fixed order."""
    return _stored(parts_of(module))


def buffers_of(module: nn.Module) -> list[torch.Tensor]:
    """Buffers of a module tree, as they come in ``stored_tensors``."""
    return [b for part in parts_of(module) for b in part._buffers.values() if b is not None]


def _stored(parts: list[nn.Module]) -> list[torch.Tensor]:
    parameters = [p for part in parts for p in part._parameters.values() if p is not None]
    return [*parameters, *(b for part in parts for b in part._buffers.values() if b is not None)]


def tensor_key(tensor: torch.Tensor) -> tuple:
    """What must be equal for two tensors to be interchangeable in a trace."""
    return (
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
        tensor.requires_grad,
        tensor.storage_offset(),
        isinstance(tensor, nn.Parameter),
        tensor.is_conj() or tensor.is_neg(),
    )


def own_attributes(module: nn.Module) -> dict[str, Any]:
    """The attributes that a module's class and user gave it."""
    return {
        name: value
        for name, value in module.__dict__.items()
        if name not in CORE_ATTRIBUTES and name not in (HIDDEN, "forward")
    }


class _Structures:
    """Interned structure of every module of a tree; unsafe are hooks and plain tensors."""

    def __init__(self) -> None:
        self._numbers: dict[tuple, int] = {}
        self._known: dict[int, tuple[int, int, bool]] = {}

    def of(self, module: nn.Module) -> int:
        return self._read(module)[0]

    def size(self, module: nn.Module) -> int:
        return self._read(module)[1]

    def is_safe(self, module: nn.Module) -> bool:
        return self._read(module)[2]

    def _read(self, module: nn.Module) -> tuple[int, int, bool]:
        if id(module) not in self._known:
            children = [(name, child) for name, child in module._modules.items()]
            read = [self._read(child) for _, child in children if child is not None]
            own = own_attributes(module)
            key = (
                type(module),
                module.training,
                _tensor_keys(module._parameters),
                _tensor_keys(module._buffers),
                tuple(sorted(module._non_persistent_buffers_set)),
                tuple(sorted(own)),
                tuple((name, c if c is None else self._read(c)[0]) for name, c in children),
            )
            safe = (
                all(child[2] for child in read)
                and not any(module.__dict__.get(hook) for hook in _HOOKS)
                and not any(has_tensor(value) for value in own.values())
            )
            number = self._numbers.setdefault(key, len(self._numbers))
            self._known[id(module)] = number, 1 + sum(child[1] for child in read), safe
        return self._known[id(module)]


def _tensor_keys(tensors: dict[str, Any]) -> tuple:
    return tuple((name, None if t is None else tensor_key(t)) for name, t in tensors.items())


def _aliasing(module: nn.Module) -> tuple[int, ...]:
    numbers: dict[int, int] = {}
    parts = parts_of(module)
    return tuple(numbers.setdefault(id(item), len(numbers)) for item in (*_stored(parts), *parts))


def _hide_varying(group: Group) -> bool:
    """Moves attributes that differ within a group out of sight; False when one cannot be."""
    columns = [parts_of(module) for _, module in group.members]
    varying: list[tuple[int, str]] = []
    for position, part in enumerate(columns[0]):
        for name, value in own_attributes(part).items():
            others = (column[position].__dict__[name] for column in columns[1:])
            if not all(same(value, other) for other in others):
                if hasattr(type(part), name):
                    return False
                varying.append((position, name))
    for position, name in varying:
        for column in columns:
            hide(column[position], name)
    return True
