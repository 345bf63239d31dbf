"""Runs one operator whole and on shards, and compares outputs and gradients in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from autoplan.codegen.sizes import local_arguments
from autoplan.runtime import ops
from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.placement import Partial, Placement, grad_of, local_shape
from autoplan.sharding.rules import GraphRules
from autoplan.sharding.strategies import Strategy
from autoplan.trace.graph import Arg, OpGraph, OpNode, Ref, TensorMeta, TorchValue
from tests.parity.ranks import combine, of_rank, per_rank, shards, simulated_ranks


@dataclass(frozen=True)
class Example:
    """One call: the operator's own arguments, with tensors among them."""

    target: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


def operator(target: str) -> Any:
    found: Any = torch.ops
    for name in target.split("."):
        found = getattr(found, name)
    return found


@dataclass(frozen=True)
class Truth:
    """One device's run of a call: operands, results, their gradients (None where there is none)."""

    node: OpNode
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    result_grads: tuple[Tensor | None, ...]
    operand_grads: tuple[Tensor | None, ...]


@dataclass(frozen=True)
class LocalRun:
    """What the ranks compute: the call on shards, operand by operand and rank by rank."""

    target: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    operands: list[list[Tensor]]
    result_grads: list[list[Tensor] | None]
    ranks: int


def check_all_strategies(example: Example, ranks: int) -> tuple[str, ...]:
    """Compares every strategy on ``ranks`` ranks with the whole operator; returns the labels."""
    tensors = tensors_of(example)
    graph = graph_of(example, tensors)
    truth = run_whole(example, tensors, graph.nodes[-1])
    offered = GraphRules(graph).strategies(truth.node, MeshAxis("tp", ranks))
    for strategy in offered:
        try:
            _check(strategy, truth, ranks)
        except Exception as error:
            shapes = [tuple(tensor.shape) for tensor in tensors]
            raise AssertionError(f"{example.target} {shapes} {ranks=}: {strategy}") from error
    return tuple(strategy.label for strategy in offered)


def tensors_of(example: Example) -> list[Tensor]:
    """The tensors among the arguments, in order."""
    return list(_leaves((*example.args, *example.kwargs.values())))


def _leaves(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _leaves(item)


def graph_of(example: Example, tensors: Sequence[Tensor]) -> OpGraph:
    """A graph whose last node is the call and whose other nodes are its tensors."""
    refs = iter([Ref(f"x{index}") for index in range(len(tensors))])

    def convert(value: Any) -> Arg:
        if isinstance(value, Tensor):
            return next(refs)
        if isinstance(value, (tuple, list)):
            return tuple(convert(item) for item in value)
        if isinstance(value, torch.dtype):
            return TorchValue("dtype", str(value).removeprefix("torch."))
        return value

    results = list(_leaves(_call(example.target, example.args, example.kwargs)))
    inputs = [
        OpNode(name=f"x{index}", kind="input", target=f"x{index}", outputs=(_meta(tensor),))
        for index, tensor in enumerate(tensors)
    ]
    call = OpNode(
        name="call",
        kind="call",
        target=example.target,
        args=tuple(convert(value) for value in example.args),
        kwargs=tuple((key, convert(value)) for key, value in example.kwargs.items()),
        outputs=tuple(_meta(tensor) for tensor in results),
    )
    return OpGraph(nodes=(*inputs, call), blocks=(), output=Ref("call"), batch=1)


def _meta(tensor: Tensor) -> TensorMeta:
    return TensorMeta(shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))


def _call(target: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    result = operator(target)(*args, **kwargs)
    return list(result) if isinstance(result, tuple) else result


def run_whole(example: Example, tensors: Sequence[Tensor], node: OpNode) -> Truth:
    """The call on one device, forward and backward from random gradients."""
    leaves = [_leaf(tensor, tensor) for tensor in tensors]
    results = list(_leaves(substituted(example.target, example.args, example.kwargs, leaves)))
    given = tuple(torch.randn_like(out) if out.requires_grad else None for out in results)
    return Truth(
        node=node,
        operands=tuple(tensors),
        result_grads=given,
        operand_grads=_backward(leaves, results, given),
        results=tuple(result.detach() for result in results),
    )


def _backward(
    leaves: Sequence[Tensor], outputs: Sequence[Tensor], given: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    pairs = [(out, grad) for out, grad in zip(outputs, given, strict=True) if grad is not None]
    if pairs:
        torch.autograd.backward([out for out, _ in pairs], [grad for _, grad in pairs])
    return tuple(
        (torch.zeros_like(leaf) if leaf.grad is None else leaf.grad) if leaf.requires_grad else None
        for leaf in leaves
    )


def _leaf(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(like.requires_grad)


def substituted(
    target: str | Callable[..., Any], args: Any, kwargs: dict[str, Any], leaves: Sequence[Tensor]
) -> Any:
    """The call with its tensors replaced, in order, by ``leaves``."""
    remaining = iter(leaves)

    def substitute(value: Any) -> Any:
        if isinstance(value, (Tensor, Ref)):
            return next(remaining)
        if isinstance(value, (tuple, list)):
            return [substitute(item) for item in value]
        return getattr(torch, value.name) if isinstance(value, TorchValue) else value

    args = [substitute(value) for value in args]
    kwargs = {key: substitute(value) for key, value in kwargs.items()}
    return _call(target, args, kwargs) if isinstance(target, str) else target(*args, **kwargs)


def _check(strategy: Strategy, truth: Truth, ranks: int) -> None:
    placed = list(zip(truth.results, strategy.outputs, strict=True))
    shapes = tuple(local_shape(tuple(out.shape), at, ranks) for out, at in placed)
    args, kwargs = local_arguments(truth.node, shapes, 1)
    run = LocalRun(
        target=strategy.local_op or truth.node.target,
        args=args,
        kwargs=dict(kwargs),
        operands=[
            _pieces(tensor, port.placement, ranks)
            for tensor, port in zip(truth.operands, strategy.inputs, strict=True)
        ],
        result_grads=[
            None if grad is None else shards(grad, grad_of(at), ranks)
            for grad, at in zip(truth.result_grads, strategy.outputs, strict=True)
        ],
        ranks=ranks,
    )
    results, grads = _run_stand_in(run) if strategy.local_op else _run_ranks(run)
    for (expected, placement), shape, pieces in zip(placed, shapes, results, strict=True):
        assert all(tuple(piece.shape) == shape for piece in pieces)
        _compare(pieces, placement, expected)
    for expected, port, pieces in zip(truth.operand_grads, strategy.inputs, grads, strict=True):
        if expected is not None:
            _compare(pieces, port.grad, expected)


def _pieces(tensor: Tensor, placement: Placement, ranks: int) -> list[Tensor]:
    """Pieces that want gradients where the tensor does; integer sums in integer terms."""
    if placement == Partial() and not tensor.is_floating_point():
        terms = [torch.randint_like(tensor, 9) for _ in range(ranks - 1)]
        return [*terms, tensor - sum(terms)]
    pieces = shards(tensor.detach(), placement, ranks)
    return [piece.detach().requires_grad_(tensor.requires_grad) for piece in pieces]


def _compare(pieces: Sequence[Tensor], placement: Placement, expected: Tensor) -> None:
    combined = combine(pieces, placement)
    torch.testing.assert_close(combined, expected, rtol=1e-9, atol=1e-9, equal_nan=True)


def _run_ranks(run: LocalRun) -> tuple[list[list[Tensor]], list[list[Any]]]:
    """Every rank on its own: no message is needed."""
    results, grads = [], []
    for rank in range(run.ranks):
        leaves = [_leaf(pieces[rank], pieces[0]) for pieces in run.operands]
        outputs = list(_leaves(substituted(run.target, run.args, run.kwargs, leaves)))
        given = [None if grad is None else grad[rank] for grad in run.result_grads]
        grads.append(_backward(leaves, outputs, given))
        results.append([output.detach() for output in outputs])
    return _by_tensor(results), _by_tensor(grads)


def _by_tensor(by_rank: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [list(pieces) for pieces in zip(*by_rank, strict=True)]


def _run_stand_in(run: LocalRun) -> tuple[list[list[Tensor]], list[list[Any]]]:
    """All ranks at once, with their messages."""
    with simulated_ranks(run.ranks) as axis:
        leaves = [
            per_rank(pieces).requires_grad_() if pieces[0].requires_grad else pieces[0].detach()
            for pieces in run.operands
        ]
        kwargs = {**run.kwargs, "axis": axis}
        output = substituted(getattr(ops, run.target), run.args, kwargs, leaves)
        output.backward(per_rank(run.result_grads[0]))
        grads = [
            of_rank(leaf.grad) if leaf.requires_grad else [None] * run.ranks for leaf in leaves
        ]
        return [of_rank(output)], grads
