"""Which modules fill the fullest rank: what each has of parameters, their states and activations.

The same amounts as the rank's memory (``rank_memory``), taken apart by module: parameters,
gradients and optimizer state as they are held throughout, activations as when the rank holds most.
Buffers, inputs, the workspace and what passes belong to no module.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial

from autoplan.plan_details import ModuleMemory
from autoplan.search.pipeline.solve import Found
from autoplan.search.regions.column import Column
from autoplan.sharding.assignment import relative_name
from autoplan.sharding.placement import local_fraction
from cost_models.schedule_memory import held_microbatches

_Module = tuple[str, str]
"""Block kind and path below it."""


@dataclass(slots=True)
class _Held:
    """What a module has on a rank: parameter elements, and bytes of activations."""

    trained: float = 0.0
    frozen: float = 0.0
    activations: float = 0.0
    items: set[int] = field(default_factory=set)


def module_memory(found: Found) -> tuple[ModuleMemory, ...]:
    """Modules of the fullest rank, the largest first."""
    totals = [memory.total for memory in found.value.memory]
    rank = totals.index(max(totals))
    held: dict[_Module, _Held] = defaultdict(_Held)
    kept = cache(partial(_kept, found))
    counts = _microbatches_held(found, rank)
    for stage, microbatches in counts.items():
        _add_stage(found, stage, microbatches, held, kept)
    modules = [_memory(found, module, each) for module, each in held.items()]
    return tuple(sorted((m for m in modules if m.total), key=lambda m: -m.total))


def _microbatches_held(found: Found, rank: int) -> Mapping[int, int]:
    """How many each stage of a rank holds when the rank holds most."""
    shape, loads = found.config.shape, found.value.loads
    stages = [stage for stage in range(shape.stages) if shape.rank_of(stage) == rank]
    moments = held_microbatches(shape, until_weight=True)[:, stages]
    nbytes = [loads[stage].kept_bytes for stage in stages]
    most = moments[int((moments @ nbytes).argmax())]
    return dict(zip(stages, map(int, most), strict=True))


def _add_stage(
    found: Found,
    stage: int,
    microbatches: int,
    held: dict[_Module, _Held],
    kept: Callable[[str, Column], Mapping[_Module, float]],
) -> None:
    """Adds what one stage of the rank holds; ``kept`` gives what a region's column keeps."""
    menus, first = found.family.menus, found.stages[stage].first
    seen: set[str] = set()
    for number, (column, key) in enumerate(found.columns(stage), first):
        is_block = bool(menus.stack.items[number].kind)
        for name, elements, trains in _parameters(found, key, column):
            is_once = name in menus.apart or (trains and not is_block)
            if is_once and name in seen:
                continue
            seen.add(name)
            module = held[_module(key if is_block else "", name.rpartition(".")[0])]
            module.trained += elements * trains
            module.frozen += elements * (not trains)
            module.items.add(number)
        for module, nbytes in kept(key, column).items():
            held[module].activations += microbatches * nbytes
            held[module].items.add(number)
    if stage + 1 < len(found.stages):
        stop = found.stages[stage].stop
        item = menus.stack.items[stop - 1]
        sent = held[(item.kind, "") if item.kind else _of_call(found, "", item.calls[-1])]
        sent.activations += microbatches * found.costs.cuts[stop - 1].forward_bytes
        sent.items.add(stop - 1)


def _parameters(found: Found, key: str, column: Column) -> Iterator[tuple[str, float, bool]]:
    """Name, elements on a rank and whether it is trained, of each parameter of a region."""
    menus = found.family.menus
    for name, placement in menus.decisions(key, column).parameters.items():
        meta = menus.costs.sizes.nodes[name].outputs[0]
        elements = meta.numel * local_fraction(placement, found.config.tp)
        yield name, elements, meta.requires_grad


def _kept(found: Found, key: str, column: Column) -> Mapping[_Module, float]:
    """Bytes that a region keeps of one microbatch."""
    menus = found.family.menus
    region = menus.regions[key]
    kind = key if region.is_block else ""
    total = defaultdict[_Module, float](float)
    for name, nbytes in menus.kept(key, column).items():
        if name in region.by_name:
            module = _of_call(found, kind, name)
        elif name in region.parameters:
            module = _module(kind, name.rpartition(".")[0])
        else:
            module = kind, ""
        total[module] += nbytes
    return total


def _of_call(found: Found, kind: str, name: str) -> _Module:
    return _module(kind, found.family.menus.costs.sizes.nodes[name].module)


def _module(kind: str, path: str) -> _Module:
    return kind, "" if path == kind else relative_name(kind, path)


def _memory(found: Found, module: _Module, held: _Held) -> ModuleMemory:
    memory = found.costs.memory

    def states(name: str) -> int:
        trained, frozen = getattr(memory.trained, name), getattr(memory.frozen, name)
        return math.ceil(held.trained * trained + held.frozen * frozen)

    kind, path = module
    return ModuleMemory(
        kind=kind,
        module=path,
        copies=len(held.items) if kind else 1,
        parameters=states("parameters"),
        gradients=states("gradients"),
        optimizer_state=states("optimizer_state"),
        gathered_parameters=states("gathered_parameters"),
        activations=math.ceil(held.activations),
    )
