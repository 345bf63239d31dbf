"""From two exported graphs of one model, at two batches, to nodes of an ``OpGraph``.

Nodes keep their exported names here; ``naming`` gives them the final ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx

from autoplan.trace import batch_sizes
from autoplan.trace.graph import Arg, OpNode, SavedTensor, TensorMeta, TorchValue
from autoplan.trace.placeholders import Placeholder
from autoplan.trace.saved import Kept, NodeRun, ref_of
from autoplan.trace.source_lines import line_of_stack

Runs = Mapping[str, NodeRun]


def convert(
    first: fx.Graph,
    second: fx.Graph,
    runs: tuple[Runs, Runs],
    placeholders: Mapping[str, Placeholder],
) -> Iterator[OpNode]:
    """Yields the nodes in the order of the graph, placeholders first.

    Args:
        first, second: clean graphs at ``batch_sizes.BATCHES``.
        runs: the fake run of each.
        placeholders: what each placeholder of the first graph stands for.
    """
    for node, other in batch_sizes.paired(first, second):
        if node.op == "placeholder":
            yield _placeholder(node, runs[0][node.name], placeholders[node.name])
        elif node.op == "call_function" and node.name in runs[0]:
            yield _call(node, other, runs[0][node.name], runs[1][other.name])


def _placeholder(node: fx.Node, run: NodeRun, given: Placeholder) -> OpNode:
    return OpNode(
        name=node.name,
        kind=given.kind,
        target=given.target,
        args=given.values,
        outputs=_metas(node, run),
        alias_of=(None,),
    )


def _call(node: fx.Node, other: fx.Node, run: NodeRun, run_other: NodeRun) -> OpNode:
    return OpNode(
        name=node.name,
        kind="call",
        target=str(node.target),
        args=tuple(
            argument(a, b, node) for a, b in zip(node.args, other.args, strict=True)
        ),
        kwargs=tuple((key, argument(v, other.kwargs[key], node)) for key, v in node.kwargs.items()),
        outputs=_metas(node, run),
        alias_of=run.alias_of,
        module=module_path(node),
        flops=run.flops,
        backward_flops=run.backward_flops,
        saved=tuple(_saved(run.kept, run_other.kept, node)),
        where=line_of_stack(node.meta.get("stack_trace") or ""),
    )


def argument(value: Any, other: Any, node: fx.Node) -> Arg:
    """One argument of both traces; batch-dependent integers become ``BatchInt``."""
    if isinstance(value, fx.Node):
        return ref_of(value)
    if isinstance(value, (list, tuple)):
        return tuple(argument(a, b, node) for a, b in zip(value, other, strict=True))
    if isinstance(value, int) and not isinstance(value, bool):
        return batch_sizes.batch_int(value, other, node)
    if value != other and not (value != value and other != other):
        batch_sizes.refuse(node, f"the argument {value} becomes {other} at another batch")
    if value is None or isinstance(value, (bool, float, str)):
        return value
    if isinstance(value, torch.dtype):
        return TorchValue("dtype", dtype_name(value))
    if isinstance(value, torch.device):
        return TorchValue("device", value.type)
    if isinstance(value, torch.layout):
        return TorchValue("layout", str(value).removeprefix("torch."))
    if isinstance(value, torch.memory_format):
        return TorchValue("memory_format", str(value).removeprefix("torch."))
    batch_sizes.refuse(node, f"an argument of type {type(value).__name__}")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def module_path(node: fx.Node) -> str:
    """Path of the innermost module that ran a node, '' for the model itself."""
    stack = node.meta.get("nn_module_stack") or {"": ("", "")}
    path = list(stack.values())[-1][0].partition("@")[0]
    return "" if path == "model" else path.removeprefix("model.")


def _metas(node: fx.Node, run: NodeRun) -> tuple[TensorMeta, ...]:
    return tuple(
        TensorMeta(
            shape=tuple(output.shape),
            dtype=dtype_name(output.dtype),
            batch_dims=dims,
            requires_grad=output.requires_grad,
        )
        for output, dims in zip(run.outputs, node.meta["batch_dims"], strict=True)
    )


def _saved(kept: tuple[Kept, ...], other: tuple[Kept, ...], node: fx.Node) -> Iterator[SavedTensor]:
    if len(kept) != len(other):
        batch_sizes.refuse(node, "autograd keeps other tensors at another batch")
    for one, two in zip(kept, other, strict=True):
        per_sample = batch_sizes.coefficient(one.nbytes, two.nbytes, node) is not None
        yield SavedTensor(
            source=one.source, operand=one.operand, nbytes=one.nbytes, per_sample=per_sample
        )
