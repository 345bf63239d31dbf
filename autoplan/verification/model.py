"""The model that is run: the plan's own where it is small, else one cut down.

Models by name and by config.json are cut down by their config. Code of the user's is run as it is,
or refused where it is too large.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from autoplan.errors import PlanError
from autoplan.job import ModelSource
from autoplan.plan import Plan
from autoplan.trace.graph import OpGraph
from autoplan.verification.cut import ways
from autoplan.verification.degrees import Degrees
from autoplan.zoo import ModelUnderPlan
from autoplan.zoo.configs import read_config
from autoplan.zoo.presets import PRESETS
from autoplan.zoo.small import DENSE_DEPTH, DEPTHS, Scale, depth, shrunk

_WHOLE_FLOPS = 2e10
"""Of a step of a model that is run whole though it could be cut down."""
_LARGEST_FLOPS, _LARGEST_PARAMETERS = 2e12, 2e8
"""Of a model that cannot be cut down: minutes on one core, and some 10 GiB on four ranks."""
_MOST_LAYERS = 64


Small = tuple[ModelUnderPlan, tuple[str, ...]]
"""A model to run, and what became smaller of it."""


def small_cases(
    case: ModelUnderPlan, graph: OpGraph, plan: Plan, degrees: Degrees
) -> Iterator[Small]:
    """Models to run in place of the plan's, until one is cut into blocks as it is.

    Which blocks are seen as repeated can depend on how many there are.

    Args:
        graph: of the whole model.

    Raises:
        PlanError: a model that is too large and cannot be cut down.
    """
    flops = _step_flops(graph.at_batch(degrees.global_batch))
    parameters = sum(node.outputs[0].numel for node in graph.of_kind("parameter"))
    fields = _fields(plan.job.model)
    if fields is not None and depth(fields[1]) and flops > _WHOLE_FLOPS:
        yield from _cut_down(fields, case, graph, plan, degrees)
        return
    if flops > _LARGEST_FLOPS or parameters > _LARGEST_PARAMETERS:
        raise PlanError(
            f"{plan.job.model.name} has {parameters:.2g} parameters and {flops:.2g} flops a step, "
            "too large to run here, and it cannot be cut down: verify a plan of a smaller model "
            "of the same code"
        )
    yield case, ()


def _cut_down(
    fields: tuple[str, Mapping[str, Any]],
    case: ModelUnderPlan,
    graph: OpGraph,
    plan: Plan,
    degrees: Degrees,
) -> Iterator[Small]:
    model_type, config = fields
    shown = [len(found) for found in ways(graph, plan).values()]
    stacks = sum(name in config for name in DEPTHS)
    dense = shown[0] if DENSE_DEPTH in config else 0
    wanted = max(max(shown, default=1) + (len(shown) > stacks), 2)
    layers = max(wanted + dense, -(-2 * degrees.stages // max(stacks, 1)))
    most = min(depth(config), _MOST_LAYERS)
    for tried in dict.fromkeys((min(layers, most), min(layers + 1, most), min(2 * layers, most))):
        scale = Scale(layers=tried, dense_layers=dense, tp=plan.mesh.tp, small_tp=degrees.tp)
        small = shrunk(model_type, config, case.seq_len, scale, origin=plan.job.model.name)
        before, now = _numel(case.model), _numel(small.model)
        cuts = [f"parameters {before:,} -> {now:,}"]
        if tried < depth(config):
            cuts.insert(0, f"layers {depth(config)} -> {tried}")
        if case.seq_len is not None:
            cuts.append(f"tokens of a sample {case.seq_len} -> {small.seq_len}")
        yield small, tuple(cuts)


def _fields(source: ModelSource) -> tuple[str, Mapping[str, Any]] | None:
    """The transformers config of a model by name or file, and its model type."""
    if source.kind == "zoo" and source.name in PRESETS:
        preset = PRESETS[source.name]
        return preset.model_type, preset.fields()
    return read_config(source.name) if source.kind == "config" else None


def _step_flops(graph: OpGraph) -> int:
    return sum(node.flops + node.backward_flops for node in graph.of_kind("call"))


def _numel(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def with_weights(model: nn.Module) -> nn.Module:
    """A copy of the model on the CPU; weights that it lacks are drawn, the same in every call.

    Raises:
        PlanError: buffers without values, in a model that only its own code can build.
    """
    lacking = {name for name, parameter in model.named_parameters() if parameter.is_meta}
    is_lacking = any(buffer.is_meta for buffer in model.buffers())
    found = _rebuilt(model) if is_lacking else copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in found.named_parameters():
        if name in lacking:
            drawn = nn.Parameter(_drawn(parameter, generator), parameter.requires_grad)
            _put(found, parameter, drawn)
    return found.cpu()


def _rebuilt(model: nn.Module) -> nn.Module:
    """A model of transformers with the values of its buffers."""
    config = getattr(model, "config", None)
    if config is None:
        raise PlanError(
            f"{type(model).__name__} has buffers on the meta device, whose values are not known: "
            "give it with its buffers"
        )
    built = type(model)(copy.deepcopy(config)).train(model.training)
    if hasattr(model, "loss_type"):
        built.loss_type = model.loss_type  # pyright: ignore[reportAttributeAccessIssue]
    return built


def _put(model: nn.Module, old: nn.Parameter, new: nn.Parameter) -> None:
    """Replaces a parameter at every name that it has."""
    for owner in model.modules():
        for name, parameter in owner.named_parameters(recurse=False, remove_duplicate=False):
            if parameter is old:
                setattr(owner, name, new)


def _drawn(like: Tensor, generator: torch.Generator) -> Tensor:
    """Weights large enough that every gradient counts, biases and norms included."""
    width = like.shape[-1] if like.dim() > 1 else 16
    noise = torch.randn(like.shape, generator=generator, dtype=torch.float64)
    return (noise * (0.8 / width**0.5) + (1.0 if like.dim() == 1 else 0.0)).to(like.dtype)
