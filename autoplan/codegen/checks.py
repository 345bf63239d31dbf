"""Refuses, by name, what cannot run correctly on the mesh of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from autoplan.codegen.choices import Choices
from autoplan.codegen.operators import arguments, is_dropout, is_random, probability
from autoplan.codegen.program import EVALUATE, Program
from autoplan.errors import UnsupportedModelError
from autoplan.sharding.placement import Partial
from autoplan.sharding.rules.batch_norm import takes_statistics
from autoplan.trace.graph import OpGraph, OpNode, Ref

METHODS = ("count", EVALUATE)
"""What the emitted root defines beside the methods of every module."""


def check_runnable(choices: Choices) -> None:
    """Checks what mixes samples, randomness, the loss and the names of the model's parts.

    Raises:
        UnsupportedModelError: naming the node or part.
    """
    _check_names(choices)
    _check_draws(choices)
    if choices.is_alone:
        return
    random = randomness(choices.graph)
    if random is not None:
        raise UnsupportedModelError(random)
    if choices.splits > 1 and choices.layout.mixing:
        raise UnsupportedModelError(
            f"{choices.layout.mixing[0]}; run it with dp=1 and one microbatch, or change the model"
        )
    if choices.num_microbatches > 1 and choices.layout.synced:
        raise UnsupportedModelError(
            f"{choices.layout.synced[0]} takes statistics of the whole batch, so that a rank's "
            "part of it is one microbatch: plan with num_microbatches = 1, or with "
            "batch_norm='local'"
        )
    if choices.splits > 1 and choices.layout.loss != Partial():
        raise UnsupportedModelError(
            f"the loss {choices.graph.output.node} is no sum over the samples of the batch; "
            "run it with dp=1 and one microbatch"
        )


def check_evaluable(choices: Choices) -> None:
    """Checks what a model computes otherwise in training, and what mixes samples.

    Raises:
        UnsupportedModelError: naming the node or part.
    """
    _check_names(choices)
    for node in choices.graph.of_kind("call"):
        moves = takes_statistics(node) and arguments(node)["running_mean"] is not None
        if is_random(node) or moves:
            raise UnsupportedModelError(
                f"{node.name} computes otherwise in training: call pm.eval() before it is asked "
                "for outputs"
            )
    for ref in choices.graph.results:
        stored = _base(choices.graph, ref)
        if stored.kind == "parameter":
            raise UnsupportedModelError(
                f"the model returns its parameter {stored.target}, of which ranks hold pieces: "
                "read it by pm.state_dict()"
            )
    reason = needs_whole_batch(choices)
    if choices.splits > 1 and reason is not None:
        raise UnsupportedModelError(
            f"{reason}, so that outputs of a part of the batch are others: plan for dp = 1 and one "
            "microbatch, or leave out the inputs that it is made of"
        )


def _base(graph: OpGraph, ref: Ref) -> OpNode:
    """The node that made the storage of a tensor."""
    node = graph.by_name[ref.node]
    base = node.alias_of[ref.index] if node.alias_of else None
    return node if base is None else _base(graph, base)


def needs_whole_batch(choices: Choices) -> str | None:
    """Why the outputs of some samples depend on others, or are a sum over them; None if neither."""
    layout = choices.layout
    if layout.mixing:
        return layout.mixing[0]
    if layout.hoisted:
        return f"{layout.hoisted[0].node} is a sum over the batch"
    if layout.synced:
        return f"{layout.synced[0]} takes statistics of the batch"
    summed = (ref for ref in choices.graph.results if layout.placements[ref] == Partial())
    return next((f"the output {ref.node} is a sum over the batch" for ref in summed), None)


def check_statistics(moved: Collection[str], program: Program) -> None:
    """Refuses running statistics that several stages read, of which one alone would move them.

    Args:
        moved: names of the buffers that a step moves.

    Raises:
        UnsupportedModelError: naming the buffer.
    """
    readers = Counter(name for stage in program.stages for name in stage.tensors if name in moved)
    shared = min((name for name, stages in readers.items() if stages > 1), default=None)
    if shared is not None:
        raise UnsupportedModelError(
            f"{shared} is read in {readers[shared]} stages of the pipeline, whose BatchNorm would "
            "move it in each by itself; plan with pp = 1, or give every call a norm of its own"
        )


def randomness(graph: OpGraph) -> str | None:
    """Why the model runs on one device only: its first operator that draws otherwise than dropout.

    The cure is part of it.
    """
    calls = graph.of_kind("call")
    drawing = (node for node in calls if is_random(node) and not is_dropout(node))
    return next((_random_message(node) for node in drawing), None)


def _check_names(choices: Choices) -> None:
    held = [node.target for kind in ("parameter", "buffer") for node in choices.graph.of_kind(kind)]
    held += [block.path for block in choices.graph.blocks]
    parts = {path.split(".")[0] for path in held if path.split(".")[0] in METHODS}
    parts |= {"draws_before" for path in held if "draws_before" in path.split(".")}
    if parts:
        raise UnsupportedModelError(
            f"the model has a part called {min(parts)!r}, which is a name of the sharded program; "
            "give that attribute another name"
        )


def _check_draws(choices: Choices) -> None:
    """Blocks of a kind share their code, and with it the numbers of their dropouts."""
    first: dict[str, int] = {}
    for block in choices.graph.blocks:
        for name in filter(choices.draw_numbers.__contains__, block.nodes):
            number = choices.draw_numbers[name] - choices.draws_before[block.path]
            if first.setdefault(choices.graph.representative[name], number) != number:
                raise UnsupportedModelError(
                    f"a dropout ahead of {name} has a result that the loss does not need, in some "
                    f"{block.kind} and not in others; take it out of the forward"
                )


def _random_message(node: OpNode) -> str:
    place = node.name.rpartition("/")[0] or node.name
    p = probability(node)
    if p is None:
        return (
            f"{node.target} at {place} draws random numbers: sharded runs do not keep those of one "
            "device; take it out of the forward"
        )
    grouped = arguments(node).get("enable_gqa") is True
    cure = "repeat its keys and values, or " if grouped else "use plain dropout, or "
    return (
        f"{node.target} with p={p} at {place}: sharded runs do not keep its mask of one device; "
        f"{cure}set p to 0"
    )
