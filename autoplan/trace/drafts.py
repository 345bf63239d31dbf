"""Nodes of a graph as they are made, under the names of the export.

A draft costs a fraction of an ``OpNode``, and a copy shares nearly all with its origin: a deep
graph is drafted, freed of dead calls, named, and only then written once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from autoplan.trace.graph import Arg, Calls, OpNode, Ref, SavedTensor, TensorMeta, refs_of

Moved = Callable[[Ref], Ref]


@dataclass(kw_only=True, slots=True)
class Draft:
    """One node; fields as of ``OpNode``.

    Attributes:
        around: the calls of modules that it is in, as the export numbers them.
        args, kwargs, alias_of: with the tensors of the origin, where the draft is a copy.
        operands: the tensors it reads.
        moved: from the tensors of the origin to those of the copy; None where it is no copy.
    """

    name: str
    kind: Literal["input", "parameter", "buffer", "constant", "call"]
    target: str
    args: tuple[Arg, ...] = ()
    kwargs: tuple[tuple[str, Arg], ...] = ()
    outputs: tuple[TensorMeta, ...]
    alias_of: tuple[Ref | None, ...] = ()
    module: str = ""
    around: Calls = ()
    reruns: Calls = ()
    flops: int = 0
    backward_flops: int = 0
    saved: tuple[SavedTensor, ...] = ()
    where: str = ""
    operands: tuple[Ref, ...] = ()
    moved: Moved | None = None


def operands_in(args: tuple[Arg, ...], kwargs: tuple[tuple[str, Arg], ...]) -> tuple[Ref, ...]:
    """The tensors among arguments, as ``OpNode.operands``."""
    return tuple(refs_of((*args, *(value for _, value in kwargs))))


def written(draft: Draft, name: str, final: Moved) -> OpNode:
    """The node of a draft.

    Args:
        name: its final name.
        final: from tensors under the names of the export to those under final names.
    """
    moved = draft.moved

    def found(ref: Ref) -> Ref:
        return final(ref if moved is None else moved(ref))

    return OpNode(
        name=name,
        kind=draft.kind,
        target=draft.target,
        args=tuple(_arg(arg, found) for arg in draft.args),
        kwargs=tuple((key, _arg(value, found)) for key, value in draft.kwargs),
        outputs=draft.outputs,
        alias_of=tuple(None if ref is None else found(ref) for ref in draft.alias_of),
        module=draft.module,
        reruns=draft.reruns,
        flops=draft.flops,
        backward_flops=draft.backward_flops,
        saved=tuple(
            SavedTensor(
                source=kept.source and final(kept.source),
                operand=kept.operand,
                nbytes=kept.nbytes,
                batch_power=kept.batch_power,
            )
            for kept in draft.saved
        ),
        where=draft.where,
    )


def _arg(arg: Arg, moved: Moved) -> Arg:
    if isinstance(arg, Ref):
        return moved(arg)
    if isinstance(arg, tuple):
        return tuple(_arg(item, moved) for item in arg)
    return arg
