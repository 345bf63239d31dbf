"""From a whole plan in the terms of the search to a plan file's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autoplan.plan import Plan, RegionPlan, SearchRecord, StagePlan
from autoplan.plan_details import BlockFlow
from autoplan.search.opaque_costs import opaque_of
from autoplan.search.pipeline.estimates import estimate_of
from autoplan.search.pipeline.solve import Found
from autoplan.search.pricing import Pricing
from autoplan.search.regions.column import Column
from autoplan.sharding.assignment import ROOT, relative_name


def plan_of(pricing: Pricing, found: Found, record: SearchRecord) -> Plan:
    """The plan of what was found; its alternatives are the caller's to add."""
    config = found.config
    return Plan(
        job=pricing.job,
        fingerprint=pricing.graph.fingerprint,
        mesh=config.mesh,
        zero=config.zero,
        microbatch=config.microbatch,
        num_microbatches=config.num_microbatches,
        schedule=config.schedule or "none",
        regions=(_root(found), *_blocks(found)),
        flows=tuple(_flows(found)),
        estimate=estimate_of(pricing, found),
        search=record,
        alternatives=(),
        profile_digest=pricing.cluster.digest,
        stages=tuple(_stages(found)) if config.pp > 1 else (),
        replicas=config.replicas,
        opaque=opaque_of(pricing.at_cp(config.cp), config.tp, config.microbatch),
    )


def _stages(found: Found) -> Iterator[StagePlan]:
    items, shape = found.family.menus.stack.items, found.config.shape
    for number, stage in enumerate(found.stages):
        own = items[stage.first : stage.stop]
        yield StagePlan(
            rank=shape.rank_of(number),
            first=own[0].name,
            blocks=tuple(item.name for item in own if item.kind),
        )


def _placed(found: Found) -> Iterator[tuple[int, str, Column]]:
    """Number, region and column of every item."""
    number = 0
    for stage in range(len(found.stages)):
        for column, key in found.columns(stage):
            yield number, key, column
            number += 1


def _root(found: Found) -> RegionPlan:
    """All parts of the root as one region, with the calls that every stage runs."""
    menus = found.family.menus
    parameters, operators = {}, dict(menus.shared_strategies)
    for number, key, column in _placed(found):
        if not menus.stack.items[number].kind:
            decided = menus.decisions(key, column)
            operators |= decided.strategies
            parameters |= {name: repr(at) for name, at in decided.parameters.items()}
    return RegionPlan(
        kind=ROOT, blocks=(), recomputed=(), parameters=parameters, operators=operators, inputs=()
    )


def _blocks(found: Found) -> Iterator[RegionPlan]:
    """Blocks of one kind and column in one region, in the order of their first blocks."""
    menus = found.family.menus
    for (kind, column), paths in _alike(found).items():
        decided = menus.decisions(kind, column)
        whole = decided.recomputes_all
        again = () if whole else decided.recomputed
        yield RegionPlan(
            kind=kind,
            blocks=tuple(paths),
            recomputed=tuple(paths) if whole else (),
            parameters={
                relative_name(kind, name): repr(at) for name, at in decided.parameters.items()
            },
            operators={relative_name(kind, name): s for name, s in decided.strategies.items()},
            inputs=tuple(map(repr, decided.inputs)),
            recomputed_operators=tuple(relative_name(kind, name) for name in again),
            reconverted_inputs=() if whole else decided.converted_again,
        )


def _alike(found: Found) -> Mapping[tuple[str, Column], list[str]]:
    """Paths of the blocks of one kind and column."""
    members: dict[tuple[str, Column], list[str]] = {}
    for number, key, column in _placed(found):
        item = found.family.menus.stack.items[number]
        if item.kind:
            members.setdefault((key, column), []).append(item.name)
    return members


def _flows(found: Found) -> Iterator[BlockFlow]:
    """How the blocks of each region run."""
    for (kind, column), paths in _alike(found).items():
        flow = found.family.menus.flow(kind, column, paths[0])
        if flow is not None:
            yield flow
