"""Whether a model in eval mode is the model in training mode without what only training does.

Then one program serves both: in evaluation its dropouts pass on what they are given, and its
BatchNorms use their running statistics. Both modes are traced, since a model may do anything else
by its mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch import nn

from autoplan.trace.fingerprint import fingerprint
from autoplan.trace.graph import Arg, OpGraph, OpNode, Ref

_DROPOUT, _BATCH_NORM = "aten.dropout.default", "autoplan.batch_norm.default"
_PASSED = (_DROPOUT, "aten.contiguous.default")
_RUNNING_MEAN, _TRAINING = 3, 6


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in eval mode; then every part is in its own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def has_fused_attention(graph: OpGraph) -> bool:
    """Whether any attention is one operator; attention with dropout is not."""
    calls = graph.of_kind("call")
    return any(node.target == "aten.scaled_dot_product_attention.default" for node in calls)


def serves_both(training: OpGraph, evaluation: OpGraph) -> bool:
    """Whether the second graph is the first without what only training does."""
    for node in evaluation.of_kind("call"):
        if node.target == _DROPOUT or (_is_norm(node) and node.args[_TRAINING] is True):
            return False
    return _bare(training) == _bare(evaluation)


def _is_norm(node: OpNode) -> bool:
    return node.target == _BATCH_NORM and node.args[_RUNNING_MEAN] is not None


def _bare(graph: OpGraph) -> str:
    """The fingerprint without dropouts and without the mode of norms.

    Copies for the sake of strides, which fused attention may make needless, are left out too.
    """
    passed: dict[Ref, Ref] = {}

    def moved(arg: Arg) -> Arg:
        if isinstance(arg, tuple):
            return tuple(map(moved, arg))
        return passed.get(arg, arg) if isinstance(arg, Ref) else arg

    nodes = []
    for node in graph.nodes:
        args = tuple(map(moved, node.args))
        if node.target in _PASSED:
            source = args[0]
            assert isinstance(source, Ref)
            passed[Ref(node.name)] = source
            continue
        if _is_norm(node):
            args = (*args[:_TRAINING], None, *args[_TRAINING + 1 :])
        kwargs = tuple((key, moved(value)) for key, value in node.kwargs)
        nodes.append(replace(node, args=args, kwargs=kwargs))
    return fingerprint(nodes, graph.tied, passed.get(graph.output, graph.output))
