"""Attributes of modules that are out of sight, so that every read of them can be noticed.

A hidden attribute is no longer found in the module, so that reading it reaches
``nn.Module.__getattr__``; ``self.__dict__[name]`` and its kin are sent the same way. Not noticed
are loops over ``self.__dict__``.
"""

from __future__ import annotations

from typing import Any

from torch import nn

HIDDEN = "_autoplan_hidden"


class _Attributes(dict[str, Any]):
    """``__dict__`` of a module with hidden attributes, which are looked up in the module."""

    def __init__(self, module: nn.Module):
        super().__init__(module.__dict__)
        self._module = module

    def _hides(self, name: object) -> bool:
        return name in dict.get(self, HIDDEN, ())

    def __getitem__(self, name: str) -> Any:
        return getattr(self._module, name) if self._hides(name) else super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        if self._hides(name):
            getattr(self._module, str(name))
            return True
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self._module, name) if self._hides(name) else super().get(name, default)


def hide(module: nn.Module, name: str) -> None:
    """Moves an attribute out of sight, where the module has it."""
    if not isinstance(module.__dict__, _Attributes):
        object.__setattr__(module, "__dict__", _Attributes(module))
    attributes = module.__dict__
    if dict.__contains__(attributes, name):
        attributes.setdefault(HIDDEN, {})[name] = dict.pop(attributes, name)


def reveal(root: nn.Module) -> None:
    """Gives the modules of ``root`` their hidden attributes back."""
    for module in root.modules():
        if isinstance(module.__dict__, _Attributes):
            hidden = dict.pop(module.__dict__, HIDDEN, {})
            object.__setattr__(module, "__dict__", {**dict(module.__dict__), **hidden})
