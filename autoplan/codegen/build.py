"""Runs emitted source and builds the module tree around it.

The source is compiled from the text in memory, never from a file, and registered with
``linecache``, so that tracebacks show its lines. Between the root and the blocks stand plain
containers, one per module of the original, so that every parameter keeps its name.
"""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from autoplan.codegen.container import Container
from autoplan.codegen.emitted import Emitted, EmittedStage


def build_module(
    emitted: Emitted,
    stage: EmittedStage,
    parameter: Callable[[str], nn.Parameter],
    buffer: Callable[[str], Tensor],
    axes: Mapping[str, Any],
    *,
    aten: Any = torch.ops.aten,
) -> nn.Module:
    """The sharded module of one stage on this rank.

    Parameters and buffers sit at their original names (the first of a tied group), block
    instances at their original paths.

    Args:
        parameter: makes the parameter of an original name: a DTensor on ``tp``, or this rank's
            local tensor.
        buffer: makes the buffer of an original name, likewise.
        axes: this rank's ``runtime.collectives.AxisGroup`` of ``tp``, and of ``dp`` where BatchNorm
            is split over it.
        aten: where the program finds its operators, by the names of ``torch.ops.aten``.
    """
    namespace = _run(emitted.source, axes, aten)
    root = namespace[stage.root_class]()
    for path, name in stage.block_classes.items():
        owner, last = _owner(root, path)
        block = namespace[name]()
        block.draws_before = stage.draws_before.get(path, 0)
        owner.add_module(last, block)
    for name in stage.parameters:
        owner, last = _owner(root, name)
        owner.register_parameter(last, parameter(name))
    for name in stage.buffers:
        owner, last = _owner(root, name)
        owner.register_buffer(last, buffer(name))
    return root


def bind_methods(
    emitted: Emitted,
    stage: EmittedStage,
    root: nn.Module,
    axes: Mapping[str, Any],
    *,
    aten: Any = torch.ops.aten,
) -> dict[nn.Module, MethodType]:
    """The ``evaluate`` of a stage and of its blocks, bound to the modules of the same stage.

    Args:
        emitted: a program of the model without its loss.
        stage: of it.
        root: of the program with the loss, by ``build_module``; its parameters and blocks are used.
        axes: as for ``build_module``.
        aten: likewise.
    """
    namespace = _run(emitted.source, axes, aten)
    classes = {"": stage.root_class, **stage.block_classes}
    modules = {root.get_submodule(path): namespace[name] for path, name in classes.items()}
    return {module: MethodType(kind.evaluate, module) for module, kind in modules.items()}


def _run(source: str, axes: Mapping[str, Any], aten: Any) -> dict[str, Any]:
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    filename = f"<autoplan {digest}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"__name__": f"autoplan_emitted_{digest}", "aten": aten, **axes}
    exec(compile(source, filename, "exec"), namespace)
    return namespace


def _owner(root: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that ``name`` lies in, made of containers where missing, and its last part."""
    *path, last = name.split(".")
    owner = root
    for part in path:
        if part not in dict(owner.named_children()):
            owner.add_module(part, Container())
        owner = owner.get_submodule(part)
    return owner, last
