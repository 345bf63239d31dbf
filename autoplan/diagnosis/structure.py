"""Findings of a traced graph: what limits the plans of a model, or has a price in all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized

from autoplan.codegen.operators import is_dropout, is_random
from autoplan.diagnosis.dims import indivisible
from autoplan.diagnosis.lines import places
from autoplan.findings import Effect, Finding
from autoplan.plurals import counted
from autoplan.sharding.batch import BatchLayout, batch_layout
from autoplan.sharding.placement import Partial
from autoplan.sharding.rules import known, opaque_operators
from autoplan.sharding.rules.batch_norm import takes_statistics
from autoplan.trace.graph import OpGraph, OpNode, Ref

_ONE_PIECE = "the batch stays in one piece: one data-parallel rank and one microbatch"
_SOFTMAX = ("aten.softmax.int", "aten._safe_softmax.default")


def findings_of(graph: OpGraph) -> Iterator[Finding]:
    """All that a graph shows."""
    layout = batch_layout(graph)
    yield from _without_rules(graph, layout)
    yield from _mixing(graph, layout)
    yield from indivisible(graph)
    yield from _batch_norms(graph)
    yield from _random(graph)
    yield from _tied(graph)


def _without_rules(graph: OpGraph, layout: BatchLayout) -> Iterator[Finding]:
    mixing = {text.partition(": ")[0] for text in layout.mixing}
    for found in opaque_operators(graph):
        calls = [graph.by_name[name] for name in found.calls]
        apart = found.keeps_samples_apart and mixing.isdisjoint(found.calls)
        yield _limit(
            "operator without a rule",
            f"{found.name} has no rule, in {_counted(calls, 'call')}",
            "every rank of tp computes the whole of it" + ("" if apart else f", and {_ONE_PIECE}"),
            f"register one: autoplan.register_rule({found.name!r}, EQUATION), letters for the dims "
            f"of its {_counted(calls[0].operands, 'tensor')} as in 'b s h, h k -> b s k'"
            if found.is_custom
            else "write it with other operators",
            calls,
        )


def _mixing(graph: OpGraph, layout: BatchLayout) -> Iterator[Finding]:
    """Operators with a rule that need samples to meet, and a loss that is no sum of theirs."""
    for text in layout.mixing:
        name, _, reason = text.partition(": ")
        node = graph.by_name[name]
        if known(node.target):
            yield _limit(
                "mixes the batch",
                reason.removesuffix(f" ({node.where})"),
                _ONE_PIECE,
                "mix samples outside of the model, or take a mean or a sum over the batch",
                [node],
            )
    if not layout.mixing and layout.loss != Partial():
        yield _limit(
            "mixes the batch",
            f"the loss {graph.output.node} is no sum over the samples of the batch",
            _ONE_PIECE,
            "return a mean or a sum over the batch",
            [graph.by_name[graph.output.node]],
        )


def _batch_norms(graph: OpGraph) -> Iterator[Finding]:
    calls = [node for node in graph.of_kind("call") if takes_statistics(node)]
    if calls:
        yield _limit(
            "BatchNorm",
            f"BatchNorm takes the statistics of its batch, in {_counted(calls, 'call')}",
            "statistics are exchanged over all data-parallel ranks at each, a rank has one "
            "microbatch, and there is no pipeline",
            "plan with batch_norm='local', use LayerNorm or GroupNorm, or freeze it with eval()",
            calls,
        )


def _random(graph: OpGraph) -> Iterator[Finding]:
    drawing = [node for node in graph.of_kind("call") if is_random(node)]
    others = [node for node in drawing if not is_dropout(node)]
    for target, calls in _by(others, lambda node: node.target):
        yield _limit(
            "randomness",
            f"{target} draws random numbers that depend on the plan",
            "plans are made, but run on one device only",
            "draw outside of the model, or use nn.Dropout",
            calls,
        )
    dropouts = [node for node in drawing if is_dropout(node)]
    of_scores = [node for node in dropouts if _reads_softmax(node, graph)]
    if of_scores:
        yield _finding(
            "costs",
            "attention dropout",
            f"attention drops scores, in {_counted(of_scores, 'call')}",
            "it runs unfused, slower and with the scores in memory",
            "set its rate to 0 where that is no loss",
            of_scores,
        )
    if dropouts:
        yield _finding(
            "costs",
            "randomness",
            f"dropout, in {_counted(dropouts, 'call')}",
            "masks are the same under every plan, but not those of torch's own generator",
            "compare with one device under autoplan.reference_dropout",
            dropouts,
        )


def _tied(graph: OpGraph) -> Iterator[Finding]:
    for names in graph.tied:
        readers = [graph.by_name[name] for name in graph.readers.get(Ref(names[0]), ())]
        yield _finding(
            "costs",
            "tied weights",
            f"{' and '.join(names)} are one parameter",
            "in a pipeline every stage that reads it holds it, and their gradients are summed",
            "nothing to do: it is one parameter under every plan",
            readers,
        )


def _reads_softmax(node: OpNode, graph: OpGraph) -> bool:
    return any(graph.by_name[ref.node].target in _SOFTMAX for ref in node.operands)


def _limit(kind: str, what: str, cost: str, cure: str, nodes: Iterable[OpNode]) -> Finding:
    return _finding("limits", kind, what, cost, cure, nodes)


def _finding(
    effect: Effect, kind: str, what: str, cost: str, cure: str, nodes: Iterable[OpNode]
) -> Finding:
    return Finding(
        kind=kind,
        effect=effect,
        what=what,
        cost=cost,
        cure=cure,
        places=places(node.where for node in nodes),
    )


def _by(
    nodes: Iterable[OpNode], key: Callable[[OpNode], str]
) -> Iterable[tuple[str, list[OpNode]]]:
    found: dict[str, list[OpNode]] = {}
    for node in nodes:
        found.setdefault(key(node), []).append(node)
    return found.items()


def _counted(things: Sized, what: str) -> str:
    return counted(len(things), what)
