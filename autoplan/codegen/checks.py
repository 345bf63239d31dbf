"""Refuses, by name, what cannot run correctly on the mesh of a plan."""

from __future__ import annotations

from autoplan.codegen.choices import Choices
from autoplan.codegen.operators import is_random, probability
from autoplan.errors import UnsupportedModelError
from autoplan.sharding.placement import Partial
from autoplan.trace.graph import OpNode


def check_runnable(choices: Choices) -> None:
    """Checks what mixes samples, randomness and the loss.

    Raises:
        UnsupportedModelError: naming the node.
    """
    if choices.splits == choices.tp == 1:
        return
    if choices.splits > 1 and choices.layout.mixing:
        raise UnsupportedModelError(
            f"{choices.layout.mixing[0]}; run it with dp=1 and one microbatch, or change the model"
        )
    for node in choices.graph.of_kind("call"):
        if is_random(node):
            raise UnsupportedModelError(_random_message(node))
    if choices.splits > 1 and choices.layout.loss != Partial():
        raise UnsupportedModelError(
            f"the loss {choices.graph.output.node} is no sum over the samples of the batch; "
            "run it with dp=1 and one microbatch"
        )


def _random_message(node: OpNode) -> str:
    place = node.name.rpartition("/")[0] or node.name
    p = probability(node)
    if p is None:
        return (
            f"{node.target} at {place} draws random numbers: sharded runs do not keep those of one "
            "device yet; take it out of the forward"
        )
    return (
        f"dropout p={p} at {place}: sharded runs do not keep the mask of one device yet; "
        "set it to 0"
    )
