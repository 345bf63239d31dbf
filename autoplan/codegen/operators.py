"""What an operator's schema says: whether it returns a list, and whether it draws at random."""

from __future__ import annotations

from typing import Any

import torch

from autoplan.codegen.torch_private import OpOverload, schema
from autoplan.errors import UnsupportedModelError
from autoplan.trace.graph import Arg, OpNode

DROPOUT = "aten.dropout.default"

_PROBABILITIES = ("p", "dropout_p", "dropout")
_MODES = ("train", "training")


def operator(target: str) -> Any:
    """The overload that a node's target names, ``aten.linear.default``.

    Raises:
        UnsupportedModelError: when this process has no such operator.
    """
    found: Any = torch.ops
    for part in target.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, OpOverload):
        raise UnsupportedModelError(
            f"operator {target} is not registered in this process; import the package that has it"
        )
    return found


def returns_list(target: str) -> bool:
    """Whether the operator returns a list or tuple of tensors, even if of one."""
    returned = schema(operator(target)).returns
    return len(returned) != 1 or str(returned[0].type) != "Tensor"


def is_random(node: OpNode) -> bool:
    """Whether a call draws random numbers: not at probability zero, and not outside training."""
    if torch.Tag.nondeterministic_seeded not in operator(node.target).tags:
        return False
    given = arguments(node)
    chances = [given[name] for name in _PROBABILITIES if name in given]
    never = bool(chances) and all(value == 0 for value in chances)
    return not never and all(given[name] is not False for name in _MODES if name in given)


def is_dropout(node: OpNode) -> bool:
    """Whether a call is a dropout that drops, whose mask does not depend on the plan."""
    return node.target == DROPOUT and is_random(node)


def probability(node: OpNode) -> Arg:
    """The dropout probability of a random operator, None where it has none."""
    given = arguments(node)
    return next((given[name] for name in _PROBABILITIES if name in given), None)


def arguments(node: OpNode) -> dict[str, Arg]:
    """Values of a call by the names of the schema, in its order, defaults filled in."""
    declared = schema(operator(node.target)).arguments
    given = {argument.name: argument.default_value for argument in declared}
    given.update(zip((argument.name for argument in declared), node.args, strict=False))
    given.update(node.kwargs)
    return given
