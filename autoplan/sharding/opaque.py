"""Operators without a rule: blocks of which nothing is known but what goes in and out.

On ``tp`` every rank computes the whole of one: its operands are gathered, and its results are
whole. The batch is split over it only where a trial shows that it keeps samples apart
(``trace.samples``); elsewhere it may mix them, and the model has the batch in one piece. In time
and memory it counts as what it reads and writes, and what a fake run saw autograd keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.sharding.placement import Partial, Placement, Replicate, Shard
from autoplan.sharding.strategies import Port, Strategy
from autoplan.trace.graph import OpGraph, OpNode, TensorMeta

SAMPLES = "samples"


@dataclass(frozen=True, kw_only=True, slots=True)
class OpaqueOperator:
    """An operator of a model for which there is no rule.

    Attributes:
        target: ``mylib.op.default``.
        calls: names of the nodes that call it.
        where: the user's source line of the first call, ``file:line``, '' when unknown.
        keeps_samples_apart: whether all of its calls were shown to, so that the batch can be split.
    """

    target: str
    calls: tuple[str, ...]
    where: str
    keeps_samples_apart: bool

    def __str__(self) -> str:
        namespace, _, rest = self.target.partition(".")
        name = f"{namespace}::{rest.removesuffix('.default')}"
        split = "" if self.keeps_samples_apart else ", the batch in one piece"
        return (
            f"opaque: {name} x {len(self.calls)}, replicated{split}; "
            "register a rule with autoplan.register_rule"
        )


def keeps_samples_apart(node: OpNode, operands: Sequence[TensorMeta], batch: int) -> bool:
    """Whether a trial shows it; operators that read no batch are not tried."""
    if not any(meta.batch_dims for meta in operands):
        return False
    from autoplan.trace import samples

    return samples.keeps_samples_apart(node, operands, batch)


def split_by_samples(node: OpNode, operands: Sequence[TensorMeta]) -> Strategy:
    """Every piece of the batch on its own; results without a batch are sums over the pieces."""
    return Strategy(
        label=SAMPLES,
        inputs=tuple(_port(meta) for meta in operands),
        outputs=tuple(_own(meta) or Partial() for meta in node.outputs),
        splits_work=True,
    )


def _port(meta: TensorMeta) -> Port:
    shard = _own(meta)
    return Port(Replicate(), Partial()) if shard is None else Port(shard, shard)


def _own(meta: TensorMeta) -> Placement | None:
    return Shard(meta.batch_dims[0]) if meta.batch_dims else None


def grouped(graph: OpGraph, nodes: Sequence[OpNode]) -> tuple[OpaqueOperator, ...]:
    """Opaque calls of a graph by operator, in the order of the graph."""
    found: dict[str, list[OpNode]] = {}
    for node in nodes:
        found.setdefault(node.target, []).append(node)
    return tuple(
        OpaqueOperator(
            target=target,
            calls=tuple(node.name for node in calls),
            where=next((node.where for node in calls if node.where), ""),
            keeps_samples_apart=all(
                keeps_samples_apart(node, [graph.meta(ref) for ref in node.operands], graph.batch)
                for node in _distinct(graph, calls)
            ),
        )
        for target, calls in found.items()
    )


def _distinct(graph: OpGraph, calls: Sequence[OpNode]) -> list[OpNode]:
    """One call for all that correspond in blocks of a kind."""
    names = dict.fromkeys(graph.representative.get(node.name, node.name) for node in calls)
    return [graph.by_name[name] for name in names]
