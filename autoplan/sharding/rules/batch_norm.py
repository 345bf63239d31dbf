"""BatchNorm: channels are loops; samples are too, with statistics taken over all ranks.

Running statistics are kept whole by every rank, whatever channels it normalises. What runs on a
piece (``runtime.batch_norm``) exchanges statistics over the ranks that split the batch, which
microbatches, one after another, cannot.
"""

from __future__ import annotations

from autoplan.sharding.equation import Dims, Equation
from autoplan.sharding.rules.base import Call, letters, names, sizes
from autoplan.trace.graph import OpGraph, OpNode

BATCH_NORM = "autoplan.batch_norm.default"
_WEIGHT, _BIAS, _TRAINING = 1, 2, 6


def takes_statistics(node: OpNode) -> bool:
    """Whether a call is a BatchNorm that normalises by the statistics of its batch."""
    return node.target == BATCH_NORM and node.args[_TRAINING] is True


def needs_one_microbatch(graph: OpGraph) -> str | None:
    """The first call for which each rank's part of the batch is one microbatch; None without."""
    calls = graph.of_kind("call")
    return next((node.name for node in calls if takes_statistics(node)), None)


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
    )


RULES = {BATCH_NORM: _batch_norm}
