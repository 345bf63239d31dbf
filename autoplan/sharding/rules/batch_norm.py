"""BatchNorm: channels are loops; samples are too, with statistics taken over all ranks.

Running statistics are kept whole by every rank, whatever channels it normalises. What runs on a
piece (``runtime.batch_norm``) exchanges statistics over the ranks that split the batch, which
microbatches, one after another, cannot. Where statistics are local, each piece has its own.
"""

from __future__ import annotations

from autoplan.sharding.equation import Dims, Equation
from autoplan.sharding.rules.base import Call, letters, names, sizes
from autoplan.trace.graph import OpGraph, OpNode, Ref

BATCH_NORM = "autoplan.batch_norm.default"
_WEIGHT, _BIAS, _RUNNING, _TRAINING, _LOCAL = 1, 2, (3, 4), 6, 9


def takes_statistics(node: OpNode) -> bool:
    """Whether a call is a BatchNorm that normalises by the statistics of its batch."""
    return node.target == BATCH_NORM and node.args[_TRAINING] is True


def syncs_statistics(node: OpNode) -> bool:
    """Whether a call takes statistics of the whole batch, over all that have a part of it."""
    return takes_statistics(node) and not _is_local(node)


def needs_one_microbatch(graph: OpGraph) -> str | None:
    """The first call for which each rank's part of the batch is one microbatch; None without."""
    calls = graph.of_kind("call")
    return next((node.name for node in calls if syncs_statistics(node)), None)


def smallest_microbatch(graph: OpGraph) -> int:
    """Samples of which every call with local statistics has several values of a channel."""
    local = [n for n in graph.of_kind("call") if takes_statistics(n) and _is_local(n)]
    channels = [(node.outputs[0].numel, node.outputs[0].shape[1]) for node in local]
    return 2 if any(numel == width * graph.batch for numel, width in channels) else 1


def local_statistics(graph: OpGraph) -> frozenset[str]:
    """Names of the buffers with running statistics that every piece of the batch moves apart."""
    return frozenset(
        graph.by_name[kept.node].target
        for node in graph.of_kind("call")
        if takes_statistics(node) and _is_local(node)
        for kept in (node.args[at] for at in _RUNNING)
        if isinstance(kept, Ref)
    )


def _is_local(node: OpNode) -> bool:
    return node.args[_LOCAL:] == (True,)


def _batch_norm(call: Call) -> Equation:
    shape = call.shapes[0]
    channels: Dims = (("d1",),) if shape[1] != 1 else ((),)
    kept: Dims = (("kept",),)
    learned = sum(call.node.args[at] is not None for at in (_WEIGHT, _BIAS))
    others = [
        channels if at < learned else kept if meta.shape else ()
        for at, meta in enumerate(call.inputs[1:])
    ]
    whole = names(range(len(shape))) - {"d1"}
    if not takes_statistics(call.node):
        whole = frozenset()
    elif 0 in call.inputs[0].batch_dims:
        whole -= {"d0"}
    return Equation(
        inputs=(letters(shape), *others),
        outputs=(letters(shape),),
        sizes={**sizes(shape), "kept": shape[1]},
        whole=whole | {"kept"},
        only_batch_axes=names([0]) if takes_statistics(call.node) else frozenset(),
    )


RULES = {BATCH_NORM: _batch_norm}
