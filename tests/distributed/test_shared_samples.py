"""Recommenders whose ranks of tp share samples behind their tables, trained on four gloo ranks."""

from __future__ import annotations

from autoplan.plan import Plan
from autoplan.sharding.assignment import regions_of
from autoplan.trace.graph import OpGraph
from tests.distributed.cases import GLOBAL_BATCH
from tests.distributed.families_on_ranks import train_families
from tests.distributed.harness import run_ranks
from tests.distributed.plans import make_plan
from tests.families import traced
from tests.parity.choose import own_samples


def test_recommenders_train_alike():
    """On 4 ranks of tp, and on 2 x 2 with ZeRO 1 and 3 and two microbatches."""
    graphs = {name: traced(name) for name in ("dlrm-24b", "mmoe")}
    given = [("dlrm-24b", 1, 4, 0, 2), ("dlrm-24b", 2, 2, 3, 2), ("mmoe", 2, 2, 1, 2)]
    run_ranks(
        train_families,
        4,
        [(name, graphs[name], _plan(graphs[name], *degrees)) for name, *degrees in given],
        deadline_s=280,
    )


def _plan(graph: OpGraph, dp: int, tp: int, zero: int, num_microbatches: int) -> Plan:
    graph = graph.at_batch(GLOBAL_BATCH)
    placed = own_samples(graph, tp, dp=dp, num_microbatches=num_microbatches).assignment
    labels = {name: strategy.label for name, strategy in placed.strategies.items()}
    entries = {kind: placed.entries[blocks[0].path] for kind, blocks in graph.kinds.items()}
    return make_plan(
        graph.fingerprint, global_batch=GLOBAL_BATCH, dp=dp, tp=tp, zero=zero,
        num_microbatches=num_microbatches,
        regions=regions_of(graph, labels, placed.storage, entries),
    )  # fmt: skip
