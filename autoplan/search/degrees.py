"""Which degrees of tensor parallelism are worth planning for a job.

A degree is *admissible* when every operator with a real share of the model's work has a strategy
that splits this work: otherwise each rank would repeat it. Nothing here knows an operator by name.
"""

from __future__ import annotations

from collections.abc import Iterable

from autoplan.errors import PlanError
from autoplan.job import Job
from autoplan.search.overrides import NONE_GIVEN, Overrides, splitting_all
from autoplan.search.pins import divisors, listed
from autoplan.search.space import StrategiesOf
from autoplan.sharding.mesh import MeshAxis
from autoplan.trace.graph import OpGraph, OpNode

HEAVY_SHARE = 0.001


def admissible_tp(
    graph: OpGraph,
    job: Job,
    strategies_of: StrategiesOf,
    overrides: Overrides = NONE_GIVEN,
    *,
    cp: int = 1,
) -> tuple[int, ...]:
    """Tensor-parallel degrees, ascending, that agree with what is given and split all heavy work.

    Args:
        graph: of one of the ``cp`` ranks that split the tokens.

    Raises:
        PlanError: when the pins or the overrides leave none.
    """
    pins, wanted = job.pins, _wanted_tp(job, cp)
    heavy = _heavy_nodes(graph)
    left = job.world_size // ((pins.dp or 1) * (pins.pp or 1) * cp)
    good = tuple(
        tp for tp in divisors(job.world_size) if _obstacle(heavy, tp, strategies_of) is None
    )
    if wanted is None:
        return splitting_all(overrides, tuple(tp for tp in good if left % tp == 0))
    if wanted in good:
        return splitting_all(overrides, (wanted,))
    node = _obstacle(heavy, wanted, strategies_of)
    pipeline = f" with pp={pins.pp}" if pins.pp else ""
    needs = f"dp={pins.dp}{pipeline} needs tp={wanted}, which"
    pin = f"tp={wanted}" if pins.tp is not None else needs
    raise PlanError(
        f"{pin} cannot split {node.name if node else 'the model'}: its sizes do not divide into "
        f"{wanted} equal parts; tp can be {listed(good)}"
    )


def _wanted_tp(job: Job, cp: int) -> int | None:
    """The degree that the pins leave; None where they leave several."""
    pins = job.pins
    if pins.tp is not None or pins.dp is None or pins.pp is None:
        return pins.tp
    return job.world_size // (pins.dp * pins.pp * cp)


def _heavy_nodes(graph: OpGraph) -> tuple[OpNode, ...]:
    """Nodes with more than ``HEAVY_SHARE`` of the work, corresponding ones of blocks as one."""
    total = sum(node.flops for node in graph.nodes)
    copies = {
        name for blocks in graph.kinds.values() for block in blocks[1:] for name in block.nodes
    }
    weight = {name: len(graph.kinds[block.kind]) for name, block in graph.block_of.items()}
    return tuple(
        node
        for node in graph.nodes
        if node.name not in copies and node.flops * weight.get(node.name, 1) > HEAVY_SHARE * total
    )


def _obstacle(heavy: Iterable[OpNode], tp: int, strategies_of: StrategiesOf) -> OpNode | None:
    """The first heavy node that no strategy splits over ``tp`` ranks."""
    if tp == 1:
        return None
    axis = MeshAxis("tp", tp)
    for node in heavy:
        if not any(strategy.splits_work for strategy in strategies_of(node, axis)):
            return node
    return None
