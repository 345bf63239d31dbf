"""Whether a rule holds: every strategy is run on pieces and compared with the whole operator.

For each strategy the operands are cut as it says, the operator runs once for every rank, forward
and backward, and the pieces put together must be the results and gradients of one run: to rounding,
on ordinary values and on values of two magnitudes, so that what passes between pieces shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autoplan.codegen.operators import operator
from autoplan.codegen.sizes import local_arguments
from autoplan.errors import first_line
from autoplan.sharding.enumerate import strategies
from autoplan.sharding.equation import Equation
from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.placement import Partial, Placement, Shard, grad_of, local_shape
from autoplan.sharding.strategies import Strategy
from autoplan.trace.graph import OpNode, Ref, TensorMeta
from autoplan.trace.torch_private import tree_leaves, tree_map
from autoplan.trace.trials import is_close, leaf

RANKS = (2, 4)


@dataclass(frozen=True, slots=True)
class Fault:
    """The first strategy that gives something else than the whole operator, and what."""

    strategy: Strategy
    ranks: int
    what: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One call of an operator on one device.

    Attributes:
        node: the call; its tensors are ``Ref("0")``, ``Ref("1")``, ...
        operands, results: these and what comes out.
        result_grads, operand_grads: gradients given and found; None where there is none.
    """

    node: OpNode
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    result_grads: tuple[Tensor | None, ...]
    operand_grads: tuple[Tensor | None, ...]


def sample(target: str, args: Sequence[Any]) -> Sample:
    """Runs a call forward and backward, with gradients for all floating-point tensors in it."""
    operands = tuple(x for x in tree_leaves(list(args)) if isinstance(x, Tensor))
    names = iter(range(len(operands)))
    given = tree_map(lambda x: Ref(str(next(names))) if isinstance(x, Tensor) else x, list(args))
    leaves = list(map(leaf, operands))
    results = _run(target, given, {}, leaves)
    grads = tuple(torch.randn_like(x) if x.requires_grad else None for x in results)
    return Sample(
        node=OpNode(
            name="call",
            kind="call",
            target=target,
            args=_tuples(given),
            outputs=tuple(map(meta, results)),
        ),
        operands=operands,
        results=tuple(result.detach() for result in results),
        result_grads=grads,
        operand_grads=_backward(leaves, results, grads),
    )


def fault(equation: Equation, truth: Sample) -> Fault | None:
    """The first strategy of an equation that does not hold; None when all do."""
    inputs = [meta(operand) for operand in truth.operands]
    for ranks in RANKS:
        for strategy in strategies(equation, inputs, truth.node.outputs, MeshAxis("tp", ranks)):
            what = _difference(strategy, truth, ranks)
            if what is not None:
                return Fault(strategy, ranks, what)
    return None


def meta(tensor: Tensor) -> TensorMeta:
    """Shape and dtype of a tensor."""
    return TensorMeta(shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))


def _difference(strategy: Strategy, truth: Sample, ranks: int) -> str | None:
    placed = list(zip(truth.results, strategy.outputs, strict=True))
    shapes = tuple(local_shape(tuple(out.shape), at, ranks) for out, at in placed)
    args, kwargs = local_arguments(truth.node, shapes, 1)
    results, grads = [], []
    for rank in range(ranks):
        leaves = [
            leaf(_piece(operand, port.placement, rank, ranks))
            for operand, port in zip(truth.operands, strategy.inputs, strict=True)
        ]
        try:
            made = _run(truth.node.target, args, dict(kwargs), leaves)
        except Exception as error:
            return f"fails: {first_line(error)}"
        if tuple(tuple(x.shape) for x in made) != shapes:
            return f"gives shapes {', '.join(str(tuple(x.shape)) for x in made)}"
        given = [
            None if grad is None else _piece(grad, grad_of(at), rank, ranks)
            for grad, at in zip(truth.result_grads, strategy.outputs, strict=True)
        ]
        grads.append(_backward(leaves, made, given))
        results.append([x.detach() for x in made])
    for at, (expected, placement) in enumerate(placed):
        if not _equal([pieces[at] for pieces in results], placement, expected):
            return "gives another result"
    for at, port in enumerate(strategy.inputs):
        expected = truth.operand_grads[at]
        if expected is not None and not _equal([g[at] for g in grads], port.grad, expected):
            return f"gives another gradient of operand {at}"
    return None


def _run(target: str, args: Any, kwargs: dict[str, Any], leaves: Sequence[Tensor]) -> list[Tensor]:
    given, named = tree_map(
        lambda x: leaves[int(x.node)] if isinstance(x, Ref) else x, (list(args), kwargs)
    )
    return [x for x in tree_leaves(operator(target)(*given, **named)) if isinstance(x, Tensor)]


def _backward(
    leaves: Sequence[Tensor], results: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    pairs = [(x, grad) for x, grad in zip(results, grads, strict=True) if grad is not None]
    if pairs:
        torch.autograd.backward([x for x, _ in pairs], [grad for _, grad in pairs])
    return tuple(
        (torch.zeros_like(x) if x.grad is None else x.grad) if x.requires_grad else None
        for x in leaves
    )


def _piece(tensor: Tensor, placement: Placement, rank: int, ranks: int) -> Tensor:
    if not isinstance(placement, Shard):
        assert placement != Partial(), "an equation as written has no terms to read"
        return tensor
    parts = tensor.chunk(placement.parts, placement.dim)
    return torch.cat([part.chunk(ranks, placement.dim)[rank] for part in parts], placement.dim)


def _equal(pieces: Sequence[Tensor | None], placement: Placement, whole: Tensor) -> bool:
    """Whether pieces are those of ``whole``, or terms of it, or the same on every rank."""
    found = [piece for piece in pieces if piece is not None]
    if placement == Partial():
        return is_close(torch.stack(found).sum(0), whole)
    ranks = len(found)
    return all(
        is_close(piece, _piece(whole, placement, rank, ranks)) for rank, piece in enumerate(found)
    )


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value
