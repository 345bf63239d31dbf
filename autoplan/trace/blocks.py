"""Finds the repeated blocks of a graph: modules that do the same computation on other parameters.

A call of a module is a candidate when its operators are contiguous, more than one, and contain a
contraction. A module that is called several times (the one layer of ALBERT) has a candidate for
each call, all with the same parameters. Candidates are the same when their operators, arguments,
shapes, dtypes, wiring, parameters by relative name and kept tensors are equal. Groups of four or
more go first and the outermost wins, so that two equal towers of layers give blocks of layers; then
groups of two or three in what is left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from autoplan.errors import UnsupportedModelError
from autoplan.trace.graph import Arg, Block, OpNode, Ref, SavedTensor

_GROUP_SIZES = (4, 2)
_STORED = ("parameter", "buffer", "constant")


@dataclass(frozen=True, slots=True)
class _Span:
    """The operators ``[start, stop)`` of one call of a module.

    ``path`` is the module's, or ``path@k`` of the k-th call where there are several.
    """

    path: str
    module: str
    start: int
    stop: int


def find_blocks(nodes: Sequence[OpNode], results: Iterable[Ref]) -> tuple[Block, ...]:
    """The blocks of a graph whose nodes are in final order and under final names."""
    calls = [node for node in nodes if node.kind == "call"]
    reader = _Reader(calls, {node.name: node for node in nodes}, results)
    alike = _alike(calls)
    chosen: dict[_Span, str] = {}
    taken = bytearray(len(calls))
    for least in _GROUP_SIZES:
        for spans in alike:
            free = [span for span in spans if not any(taken[span.start : span.stop])]
            for group in reader.equal(free) if len(free) >= least else ():
                if len(group) >= least:
                    chosen.update(dict.fromkeys(group, group[0].path))
                    for span in group:
                        taken[span.start : span.stop] = b"\1" * (span.stop - span.start)
    return tuple(
        reader.block(span, chosen[span]) for span in sorted(chosen, key=lambda span: span.start)
    )


def blocks_at(
    nodes: Sequence[OpNode], results: Iterable[Ref], paths: Collection[str]
) -> tuple[Block, ...]:
    """The modules at ``paths`` that run, as blocks; equal ones are of one kind.

    Raises:
        UnsupportedModelError: naming a module whose calls are not one piece.
    """
    calls = [node for node in nodes if node.kind == "call"]
    reader = _Reader(calls, {node.name: node for node in nodes}, results)
    running = _positions(calls)
    spans: dict[str, _Span] = {}
    for path in paths:
        module, _, count = path.partition("@")
        positions = running.get((module, int(count or 0)))
        span = _span(path, module, positions, calls) if positions else None
        if span is not None:
            spans[path] = span
        elif positions:
            raise UnsupportedModelError(f"{path} runs in pieces here, but in one for the loss")
    found = [
        (span, group[0].path)
        for group in reader.equal(spans[path] for path in paths if path in spans)
        for span in group
    ]
    found.sort(key=lambda each: each[0].start)
    return tuple(reader.block(span, kind) for span, kind in found)


def _alike(calls: Sequence[OpNode]) -> list[list[_Span]]:
    """Candidate modules of one depth with equal sequences of operators, outermost first."""
    groups: dict[tuple[int, tuple[str, ...]], list[_Span]] = defaultdict(list)
    for span in _spans(calls):
        targets = tuple(node.target for node in calls[span.start : span.stop])
        groups[span.module.count("."), targets].append(span)
    repeated = {key: spans for key, spans in groups.items() if len(spans) > 1}
    return [repeated[key] for key in sorted(repeated, key=lambda k: (k[0], repeated[k][0].start))]


def _spans(calls: Sequence[OpNode]) -> Iterator[_Span]:
    running = _positions(calls)
    several = {module for module, count in running if count}
    for (module, count), positions in running.items():
        path = f"{module}@{count}" if module in several else module
        span = _span(path, module, positions, calls)
        if span is not None:
            yield span


def _span(
    path: str, module: str, positions: Sequence[int], calls: Sequence[OpNode]
) -> _Span | None:
    contiguous = positions[-1] - positions[0] + 1 == len(positions)
    if contiguous and len(positions) > 1 and any(calls[index].flops for index in positions):
        return _Span(path, module, positions[0], positions[-1] + 1)
    return None


def _positions(calls: Sequence[OpNode]) -> dict[tuple[str, int], list[int]]:
    """The operators of every call of every module, in the order of execution."""
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for index, node in enumerate(calls):
        numbers = dict(node.reruns)
        for path in _prefixes(node.module):
            found[path, numbers.get(path, 0)].append(index)
    return found


def _prefixes(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition(".")[0]


class _Reader:
    """Reads spans of a graph: their structure, and what they exchange with the rest."""

    def __init__(self, calls: Sequence[OpNode], by_name: dict[str, OpNode], results: Iterable[Ref]):
        self.calls = calls
        self.by_name = by_name
        self.position = {node.name: index for index, node in enumerate(calls)}
        self.last_read: dict[Ref, int] = dict.fromkeys(results, len(calls))
        for index, node in enumerate(calls):
            for ref in node.operands:
                self.last_read[ref] = max(self.last_read.get(ref, 0), index)

    def equal(self, spans: Iterable[_Span]) -> list[list[_Span]]:
        """Groups of spans with equal structure, in the order of execution."""
        groups: dict[tuple, list[_Span]] = defaultdict(list)
        for span in spans:
            groups[self.structure(span)].append(span)
        return list(groups.values())

    def structure(self, span: _Span) -> tuple:
        """What must be equal for two modules to be the same computation."""
        seen: dict[Ref, int] = {}
        home = self._home(span)
        rows = tuple(
            self._row(node, span, home, seen) for node in self.calls[span.start : span.stop]
        )
        left = tuple((self._inside(ref.node, span), ref.index) for ref in self._outputs(span))
        return rows, left

    def _home(self, span: _Span) -> str:
        """Path under which a module's tensors are named: its own, or another one it is held at."""
        calls = self.calls[span.start : span.stop]
        stored = [
            (node.module[len(span.module) :], ref.node.rpartition(".")[0])
            for node in calls
            for ref in node.operands
            if self.by_name[ref.node].kind in _STORED
        ]
        if any(_is_below(holder, span.module) for _, holder in stored):
            return span.module
        held = (holder.removesuffix(part) for part, holder in stored if holder.endswith(part))
        return next(held, span.module)

    def _row(self, node: OpNode, span: _Span, home: str, seen: dict[Ref, int]) -> tuple:
        operands = node.operands
        return (
            node.target,
            node.module[len(span.module) :],
            self._arg(node.args, span, home, seen),
            self._arg(tuple(value for _, value in node.kwargs), span, home, seen),
            tuple(key for key, _ in node.kwargs),
            node.outputs,
            tuple(None if ref is None else operands.index(ref) for ref in node.alias_of),
            node.flops,
            node.backward_flops,
            tuple(self._kept(kept, span) for kept in node.saved),
        )

    def _arg(self, arg: Arg, span: _Span, home: str, seen: dict[Ref, int]) -> object:
        if isinstance(arg, tuple):
            return tuple(self._arg(item, span, home, seen) for item in arg)
        if not isinstance(arg, Ref):
            return type(arg).__name__, repr(arg)
        inside = self._inside(arg.node, span)
        if inside is not None:
            return "inner", inside, arg.index
        source = self.by_name[arg.node]
        meta = source.outputs[arg.index]
        if source.kind in _STORED:
            return source.kind, _relative(source.name, home), source.args, meta
        return "outer", seen.setdefault(arg, len(seen)), meta

    def _kept(self, kept: SavedTensor, span: _Span) -> tuple:
        source = kept.source
        origin = None if source is None else (self._inside(source.node, span), source.index)
        if origin is not None and origin[0] is None:
            origin = "outer"
        return origin, kept.operand, kept.nbytes, kept.batch_power

    def _inside(self, name: str, span: _Span) -> int | None:
        position = self.position.get(name, -1)
        return position - span.start if span.start <= position < span.stop else None

    def _outputs(self, span: _Span) -> Iterator[Ref]:
        for node in self.calls[span.start : span.stop]:
            for index in range(len(node.outputs)):
                ref = Ref(node.name, index)
                if self.last_read.get(ref, 0) >= span.stop:
                    yield ref

    def block(self, span: _Span, kind: str) -> Block:
        """The block of one span."""
        nodes = self.calls[span.start : span.stop]
        outside = dict.fromkeys(
            ref for node in nodes for ref in node.operands if self._inside(ref.node, span) is None
        )
        stored = [ref.node for ref in outside if self.by_name[ref.node].kind in _STORED]
        return Block(
            path=span.path,
            kind=kind,
            nodes=tuple(node.name for node in nodes),
            inputs=tuple(ref for ref in outside if self.by_name[ref.node].kind not in _STORED),
            parameters=tuple(dict.fromkeys(stored)),
            outputs=tuple(self._outputs(span)),
        )


def _is_below(name: str, path: str) -> bool:
    return name == path or name.startswith(f"{path}.")


def _relative(name: str, path: str) -> str:
    return name[len(path) :] if name.startswith((f"{path}.", f"{path}/")) else f"={name}"
