"""What a block holds from its forward to its backward is, to the byte, what the plan says of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from autoplan.codegen.pipeline import emit_program
from autoplan.plan import RegionPlan
from autoplan.search.operator_costs import MicrobatchCosts
from autoplan.search.pricing import Pricing
from autoplan.search.regions.column import Column, Prices
from autoplan.search.regions.menus import RegionDecisions, region_menus
from autoplan.sharding.assignment import ROOT, relative_name
from autoplan.sharding.placement import Replicate
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from autoplan.trace.needed import needed_of_block
from autoplan.trace.stack import stack_of
from tests.distributed.plans import make_plan
from tests.parity.choose import replicated
from tests.parity.models import GPT, initialise, language_batch, llama
from tests.parity.test_regions import regions
from tests.unit.held_memory import held_bytes
from tests.unit.region_oracle import RegionOracle, Way
from tests.unit.search_graphs import job, small_cluster

BATCH = 4
MODELS = {"gpt": lambda: GPT(width=64, heads=4), "llama": llama}


@dataclass(frozen=True, kw_only=True)
class Model:
    model: nn.Module
    batch: dict[str, Tensor]
    graph: OpGraph

    @property
    def kind(self) -> str:
        return self.graph.blocks[0].kind

    def costs(self, tp: int) -> MicrobatchCosts:
        pricing = Pricing(self.graph, job(gpus=tp, batch=BATCH), small_cluster())
        return pricing.microbatch(tp, BATCH)

    def held(self, plan_regions: tuple[RegionPlan, ...], tp: int) -> list[int]:
        plan = make_plan(self.graph.fingerprint, global_batch=BATCH, tp=tp, regions=plan_regions)
        return held_bytes(emit_program(self.graph, plan), self.model, self.batch, self.kind)


@cache
def model_of(name: str) -> Model:
    torch.manual_seed(0)
    model, batch = initialise(MODELS[name](), torch.float32), language_batch(BATCH)
    if name == "llama":
        batch["input_ids"] = batch.pop("ids")
    return Model(
        model=model, batch=batch, graph=capture(model, batch, kernels="cpu").at_batch(BATCH)
    )


def kept_bytes(case: Model, again: frozenset[str]) -> float:
    """What a block keeps on one device, counted by the rules one by one."""
    block, costs = case.graph.blocks[0], case.costs(1)
    oracle = RegionOracle(
        case.graph,
        costs,
        small_cluster(),
        calls=block.nodes,
        is_block=True,
        entries={block.inputs[0]: "stream"},
        exits={block.outputs[0]: "stream"},
        alike=frozenset(),
    )
    amounts = oracle.amounts(
        Way(
            mode="calls",
            strategies={name: costs.space.of(name)[0] for name in block.nodes},
            storage=dict.fromkeys(oracle.parameters(), Replicate()),
            crossing={"stream": Replicate()},
            again=again,
        )
    )
    assert amounts is not None
    return amounts.kept_bytes


@pytest.mark.parametrize("name", MODELS)
def test_random_operators_of_a_block(name):
    case, draw = model_of(name), random.Random(5)
    root, layers = regions(replicated(case.graph, 1))
    needed = sorted(needed_of_block(case.graph, case.graph.blocks[0]))
    drawn = [frozenset(draw.sample(needed, draw.randint(1, len(needed) - 1))) for _ in range(7)]
    found = set()
    for again in (frozenset(), *drawn, frozenset(needed)):
        names = tuple(relative_name(case.kind, name) for name in again)
        own = RegionPlan(
            kind=layers.kind,
            blocks=layers.blocks,
            recomputed=(),
            parameters=layers.parameters,
            operators=layers.operators,
            inputs=layers.inputs,
            recomputed_operators=names,
        )
        expected = kept_bytes(case, again)
        assert case.held((root, own), 1) == [expected]
        found.add(expected)
    assert len(found) > 6


def columns(case: Model, tp: int) -> Iterator[tuple[Column, tuple[RegionPlan, ...]]]:
    """Ways that are best at some prices, with single operators or inputs made again."""
    menus, draw = region_menus(stack_of(case.graph), case.costs(tp)), random.Random(3)
    seen: set[tuple[int, ...]] = set()
    for _ in range(24):
        given = {each.name: draw.choice(each.placements) for each in menus.boundaries}
        at = Prices(
            forward_s=10 ** draw.uniform(-2, 0),
            backward_input_s=1.0,
            backward_weight_s=10 ** draw.uniform(-2, 0),
            kept_bytes=10 ** draw.uniform(-12, -9),
            trained_elements=draw.choice([0.0, 10 ** draw.uniform(-12, -8)]),
        )
        taken = {key: menus.fixed(key, given).least(at).column for key in dict.fromkeys(menus.keys)}
        column = taken[case.kind]
        decided = menus.decisions(case.kind, column)
        if column.choices in seen or decided.recomputes_all or not decided.recomputed:
            continue
        seen.add(column.choices)
        others = [menus.decisions(key, taken[key]) for key in taken if key != case.kind]
        yield column, (root_of(others, menus.shared_strategies), block_of(case, decided))


def root_of(parts: list[RegionDecisions], shared) -> RegionPlan:
    operators, parameters = dict(shared), {}
    for part in parts:
        operators |= part.strategies
        parameters |= {name: repr(placement) for name, placement in part.parameters.items()}
    return RegionPlan(
        kind=ROOT, blocks=(), recomputed=(), parameters=parameters, operators=operators, inputs=()
    )


def block_of(case: Model, decided: RegionDecisions) -> RegionPlan:
    def relative(named):
        return {relative_name(case.kind, name): value for name, value in named.items()}

    return RegionPlan(
        kind=case.kind,
        blocks=tuple(block.path for block in case.graph.blocks),
        recomputed=(),
        parameters={name: repr(at) for name, at in relative(decided.parameters).items()},
        operators=relative(decided.strategies),
        inputs=tuple(map(repr, decided.inputs)),
        recomputed_operators=tuple(relative(dict.fromkeys(decided.recomputed))),
        reconverted_inputs=decided.converted_again,
    )


@pytest.mark.parametrize("most", [6, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MODELS)
def test_what_the_search_chooses_over_two_ranks(name, most):
    case, found = model_of(name), list(columns(model_of(name), 2))
    assert len(found) >= 6
    assert any(own.reconverted_inputs for _, (_, own) in found)
    for column, plan_regions in found[:most]:
        assert case.held(plan_regions, 2) == pytest.approx([column.kept_bytes] * 2, rel=0.01)
