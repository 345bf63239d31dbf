"""Columns of all items add up to what the plan of the whole model costs without a pipeline."""

import random
from collections import defaultdict
from collections.abc import Mapping

import pytest
import torch

from autoplan.search.candidates import Candidate
from autoplan.search.estimate import step_times
from autoplan.search.found import Found
from autoplan.search.memory import memory_of_plan
from autoplan.search.pricing import Pricing
from autoplan.search.problem import PAGE_BYTES
from autoplan.search.regions.column import Column, Prices
from autoplan.search.regions.menus import RegionMenus, region_menus
from autoplan.search.regions.ways import whole_strategy
from autoplan.sharding.placement import Placement, Shard
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph, Ref
from autoplan.trace.stack import stack_of
from tests.unit import trace_models
from tests.unit.search_graphs import chain, gated_mlp, job, small_cluster, two_kinds

TP = 2
LAYERS = 3
CANDIDATE = Candidate(dp=1, tp=TP, zero=0, microbatch=2, num_microbatches=1)
GPT = capture(
    trace_models.GPT(layers=LAYERS, width=256, heads=4, length=512, vocab=512, tied=False),
    trace_models.tokens(2, 512, 512),
    loss_fn=trace_models.token_loss,
)
GRAPHS = {
    "chain": chain(LAYERS, width=256, tokens=512),
    "gated": gated_mlp(LAYERS, width=256, hidden=512, tokens=512),
    "gpt": GPT,
}
TWO_KINDS = two_kinds(LAYERS, width=256, tokens=512)
IDS = torch.zeros(2, 16, dtype=torch.long)
LLAMA = capture(trace_models.llama(layers=LAYERS), {"input_ids": IDS, "labels": IDS})
IN_TIME = {**GRAPHS, "two kinds": TWO_KINDS, "llama": LLAMA}
IN_MEMORY = {**GRAPHS, "two kinds": TWO_KINDS}


def priced(graph: OpGraph) -> Pricing:
    return Pricing(graph, job(gpus=TP, batch=2), small_cluster())


def columns(menus: RegionMenus, given: Mapping[str, Placement], at: Prices) -> dict[str, Column]:
    return {key: menus.fixed(key, given).least(at).column for key in dict.fromkeys(menus.keys)}


def found(
    pricing: Pricing, menus: RegionMenus, taken: dict[str, Column], recomputed: dict[str, int]
) -> Found:
    """The same choices in the terms of the folded graph."""
    space = pricing.space(TP)
    chosen: dict[str, int] = {}
    for key, column in taken.items():
        decided = menus.decisions(key, column)
        for name, label in decided.strategies.items():
            labels = [strategy.label for strategy in space.of(name)]
            chosen[name] = labels.index(label)
        for name, placement in decided.parameters.items():
            chosen[name] = [s.outputs[0] for s in space.of(name)].index(placement)
        for door, placement in zip(pricing.folded.doors.get(key, ()), decided.inputs, strict=True):
            chosen[door.name] = [s.outputs[0] for s in space.of(door.name)].index(placement)
    return Found(
        candidate=CANDIDATE,
        count=sum(recomputed.values()),
        recomputed=recomputed,
        choices=tuple(
            chosen.get(name, whole_strategy(options))
            for name, options in zip(space.names, space.strategies, strict=True)
        ),
        time_s=0.0,
        memory_pages=0,
    )


def left_in(pricing: Pricing, menus: RegionMenus, taken: dict[str, Column]) -> set[Placement]:
    """Where the last operators of blocks leave their results."""
    found: set[Placement] = set()
    for kind, blocks in pricing.graph.kinds.items():
        last = blocks[0].outputs[0]
        label = menus.decisions(kind, taken[kind]).strategies[last.node]
        options = pricing.space(TP).of(last.node)
        found.add(next(s for s in options if s.label == label).outputs[last.index])
    return found


def cases(graph: OpGraph, recompute: str):
    """Ways to run a model whose blocks leave their results as they cross."""
    pricing, draw = priced(graph), random.Random(7)
    costs = pricing.costs(CANDIDATE).microbatch
    menus = region_menus(stack_of(graph), costs, recompute)  # type: ignore[arg-type]
    (boundary,) = menus.boundaries
    count = 0
    for _ in range(40):
        given: dict[str, Placement] = {boundary.name: draw.choice(boundary.placements)}
        at = Prices(
            forward_s=10 ** draw.uniform(-2, 0),
            backward_input_s=1.0,
            backward_weight_s=10 ** draw.uniform(-2, 0),
            kept_bytes=draw.choice([0.0, 10 ** draw.uniform(-14, -9)]),
            trained_elements=draw.choice([0.0, 10 ** draw.uniform(-12, -8)]),
        )
        taken = columns(menus, given, at)
        if left_in(pricing, menus, taken) == {given[boundary.name]}:
            count += 1
            yield pricing, menus, taken
    assert count > 5


def total(menus: RegionMenus, taken: dict[str, Column], name: str) -> float:
    return sum(getattr(taken[key], name) for key in menus.keys)


@pytest.mark.parametrize("graph", IN_TIME.values(), ids=IN_TIME)
def test_times_without_recomputation(graph: OpGraph) -> None:
    for pricing, menus, taken in cases(graph, "none"):
        times = step_times(pricing, found(pricing, menus, taken, {}))
        seconds = menus.shared_s + sum(
            total(menus, taken, name)
            for name in ("forward_s", "backward_input_s", "backward_weight_s")
        )
        assert seconds == pytest.approx(times.compute_s + times.exposed_comm_s)
        sent = total(menus, taken, "forward_messages_s")
        sent += total(menus, taken, "backward_messages_s")
        assert sent == pytest.approx(times.exposed_comm_s)
        by_kind: dict[str, float] = defaultdict(float)
        for key in menus.keys:
            for kind, kind_s in menus.messages_s(key, taken[key]).items():
                by_kind[f"{kind} tp"] += kind_s
        over_tp = {name: kind_s for name, kind_s in times.comm_s.items() if name.endswith(" tp")}
        assert dict(by_kind) == pytest.approx(over_tp)


def page_error(pricing: Pricing) -> float:
    """Storages are rounded up to pages one by one: those of vectors, and of one number a token."""
    small = [n for n in pricing.graph.nodes if any(m.nbytes % (TP * PAGE_BYTES) for m in n.outputs)]
    return PAGE_BYTES * len(small) if pricing.graph is GPT else 1e-3


@pytest.mark.parametrize("graph", IN_MEMORY.values(), ids=IN_MEMORY)
def test_memory_without_recomputation(graph: OpGraph) -> None:
    for pricing, menus, taken in cases(graph, "none"):
        memory = memory_of_plan(pricing, found(pricing, menus, taken, {}))
        kept = memory.activations - pricing.input_bytes(1)
        counted = total(menus, taken, "kept_bytes")
        assert counted == pytest.approx(kept, abs=page_error(pricing))
        elements = total(menus, taken, "trained_elements")
        assert elements * 4 == pytest.approx(memory.parameters - pricing.buffer_bytes)


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_whole_blocks_recomputed(graph: OpGraph) -> None:
    """A block whose every call runs again takes more: what the backward does not need."""
    (kind,) = graph.kinds
    for pricing, menus, taken in cases(graph, "full"):
        plan = found(pricing, menus, taken, {kind: LAYERS})
        times = step_times(pricing, plan)
        column = taken[kind]
        decided = menus.decisions(kind, column)
        seconds = menus.shared_s + sum(
            total(menus, taken, name)
            for name in ("forward_s", "backward_input_s", "backward_weight_s")
        )
        space = pricing.space(TP)
        costs = pricing.costs(CANDIDATE).microbatch
        spared = {name for name in decided.strategies if name not in decided.recomputed}
        assert spared
        seconds += LAYERS * sum(
            costs.operators[space.number[name]][plan.choices[space.number[name]]].forward_s
            for name in spared
        )
        seconds += LAYERS * unrepeated_s(pricing, plan, spared)
        assert seconds == pytest.approx(times.compute_s + times.exposed_comm_s)
        kept = memory_of_plan(pricing, plan).activations - pricing.input_bytes(1)
        entering = pricing.graph.meta(Ref(menus.boundaries[0].name)).nbytes
        share = TP if isinstance(decided.inputs[0], Shard) else 1
        assert column.kept_bytes == entering / share
        copies = costs_of_copies(pricing, plan)
        assert total(menus, taken, "kept_bytes") + copies == pytest.approx(
            kept, abs=page_error(pricing)
        )


def unrepeated_s(pricing: Pricing, plan: Found, spared: set[str]) -> float:
    """Conversions in a block that only calls want which neither save them nor run again."""
    space, costs = pricing.space(TP), pricing.costs(CANDIDATE).microbatch
    nodes = pricing.graph.by_name
    found_s = 0.0
    for link, table in zip(space.links, costs.conversions, strict=True):
        stored = nodes.get(link.tensor.ref.node)
        if not link.tensor.region or (stored is not None and stored.kind == "parameter"):
            continue
        wanted: dict[int, bool] = {}
        for use, (reader, ports) in zip(link.tensor.uses, link.readers, strict=True):
            saved = {kept.operand for kept in nodes[use.reader].saved}
            needs = use.reader not in spared or use.operand in saved
            port = ports[plan.choices[reader]]
            wanted[port] = wanted.get(port, False) or needs
        q = link.classes[plan.choices[link.producer]]
        found_s += sum(table[q][p].forward_s for p, needs in wanted.items() if not needs)
    return found_s


def costs_of_copies(pricing: Pricing, plan: Found) -> float:
    """Converted weights of one recomputed block, which a plan without pipelines counts as kept."""
    problem = pricing.problem(CANDIDATE, plan.recomputed)
    names = {p for blocks in pricing.graph.kinds.values() for p in blocks[0].parameters}
    return PAGE_BYTES * sum(
        tensor.copy_pages[q][p]
        for tensor in problem.tensors
        if tensor.copy_pages and tensor.name in names
        for q in [tensor.classes[plan.choices[tensor.producer]]]
        for p in {reader.ports[plan.choices[reader.node]] for reader in tensor.readers}
    )
