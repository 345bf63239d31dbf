"""Short, legal, unique Python names for nodes, modules and arguments."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable

RESERVED = frozenset(
    {
        "self", "tp", "dp", "device", "index", "counts", "draws", "aten", "torch", "local",
        "checkpoint", "ops", "collectives", "Container", "AxisGroup", "invariant_dropout",
        "synced_batch_norm", "arrived",
        *keyword.kwlist, *keyword.softkwlist, *dir(builtins),
        "again", "recomputing",
    }
)  # fmt: skip


class Names:
    """Hands out names that are not taken yet in one function."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(RESERVED) | set(taken)

    def new(self, wanted: str) -> str:
        """``wanted`` made legal, with a number behind it if it is taken."""
        base = identifier(wanted)
        base = f"{base}_" if base in RESERVED else base
        name, number = base, 1
        while name in self._taken:
            number += 1
            name = f"{base.rstrip('_')}_{number}"
        self._taken.add(name)
        return name


def identifier(text: str) -> str:
    """A Python identifier (ASCII) that reads like ``text``."""
    name = re.sub(r"[\W_]+", "_", text, flags=re.ASCII).strip("_")
    return f"x{name}" if not name or name[0].isdigit() else name


def class_name(path: str) -> str:
    """``transformer.h`` -> ``TransformerH``; numbers and signs are left out."""
    words = re.findall(r"[A-Za-z][A-Za-z0-9]*", re.sub(r"(?<![A-Za-z0-9])\d+", " ", path))
    parts = [part for word in words for part in word.split("_")]
    return "".join(part[:1].upper() + part[1:] for part in parts) or "Block"


def variable(module: str, op: str, *, inside: str, alone: bool) -> str:
    """What to call the result of an operator that ``module`` runs, in the code of ``inside``.

    The operator, behind the last name of its module unless that is ``inside``; the module alone
    where it runs nothing else. Four words and more are shortened to their initials.
    """
    words = [word for word in op.split("_") if word]
    short = op.strip("_") if len(words) < 4 else "".join(word[0] for word in words)
    last = next((part for part in reversed(module.split(".")) if not part.isdigit()), "")
    if not last or module == inside:
        return short
    return last if alone else f"{last}_{short}"
