"""What the menus say about the model as a whole: boundaries, cuts, shared parameters, decisions."""

import pytest

from autoplan.search.pricing import Pricing
from autoplan.search.regions.column import Prices
from autoplan.search.regions.menus import RegionMenus, region_menus
from autoplan.sharding.assignment import assign, regions_of
from autoplan.sharding.placement import Placement, Replicate, Shard
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from autoplan.trace.stack import stack_of
from tests.unit import trace_models
from tests.unit.search_graphs import chain, job, small_cluster, two_kinds
from tests.unit.test_trace_stack import encoder_decoder

TP = 2

AT = Prices(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0, kept_bytes=1e-11)
LAYERS = 3
TIED = capture(
    trace_models.GPT(layers=LAYERS, width=16, heads=2, length=12),
    trace_models.tokens(2, 12, 61),
    loss_fn=trace_models.token_loss,
)


def menus_of(graph: OpGraph) -> RegionMenus:
    return region_menus(
        stack_of(graph), Pricing(graph, job(gpus=TP, batch=2), small_cluster()).microbatch(TP, 2)
    )


def first_placements(menus: RegionMenus, number: int) -> dict[str, Placement]:
    return {b.name: b.placements[number % len(b.placements)] for b in menus.boundaries}


def test_a_decoder_has_one_boundary() -> None:
    menus = menus_of(TIED)
    (boundary,) = menus.boundaries
    assert boundary.name == "/add"
    assert boundary.placements == (Replicate(), Shard(1), Shard(2))
    assert boundary.meta.shape == (2, 12, 16)
    assert boundary.meta.requires_grad
    assert menus.keys == ("tokens/embedding", *("layers.0",) * LAYERS, "norm/layer_norm")


def test_both_sides_cross_in_placements_of_their_own() -> None:
    names = [boundary.name for boundary in menus_of(encoder_decoder()).boundaries]
    assert names == ["tokens/embedding", "tokens/embedding#1", "norm/layer_norm"]


def test_sides_that_start_from_one_tensor_share_its_placement() -> None:
    (boundary,) = menus_of(two_kinds(LAYERS, width=64, tokens=16)).boundaries
    assert boundary.name == "inp/linear"


@pytest.mark.parametrize("graph", [TIED, encoder_decoder(), chain(2, width=64, tokens=16)])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_cuts_are_crossed_by_local_shards(graph: OpGraph, number: int) -> None:
    menus = menus_of(graph)
    given = first_placements(menus, number)
    stack = menus.stack
    of = {ref.node: given[b.name] for b in menus.boundaries for ref in b.members}
    cuts = menus.crossing_bytes(given)
    assert len(cuts) == len(stack.items) - 1
    for cut, refs in zip(cuts, stack.crossings, strict=True):
        nbytes = [
            graph.meta(ref).nbytes
            / (TP if isinstance(of[graph.representative.get(ref.node, ref.node)], Shard) else 1)
            for ref in refs
        ]
        assert cut.forward_bytes == pytest.approx(sum(nbytes))
        learn = [n for n, ref in zip(nbytes, refs, strict=True) if graph.meta(ref).requires_grad]
        assert cut.backward_bytes == pytest.approx(sum(learn))


def test_tied_weights_are_decided_for_both_ends() -> None:
    menus = menus_of(TIED)
    (tied,) = menus.shared_parameters
    assert (tied.name, tied.items, tied.trainable) == ("tokens.weight", (0, LAYERS + 1), True)
    assert tied.elements == tuple(
        61 * 16 / (TP if isinstance(placement, Shard) else 1) for placement in tied.placements
    )
    for placement in tied.placements:
        for key in (menus.keys[0], menus.keys[-1]):
            column = menus.fixed(key, {tied.name: placement}).least(AT).column
            assert menus.decisions(key, column).parameters[tied.name] == placement


def test_what_every_stage_runs_is_whole() -> None:
    menus = menus_of(encoder_decoder())
    assert set(menus.shared_strategies) == set(menus.stack.shared)
    space, costs = menus.costs.space, menus.costs.operators
    assert menus.shared_s == pytest.approx(
        sum(costs[space.number[name]][0].forward_s for name in menus.stack.shared)
    )
    assert all(space.of(name)[0].label == "replicate" for name in menus.stack.shared)


@pytest.mark.parametrize("graph", [TIED, encoder_decoder()])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_decisions_make_a_plan(graph: OpGraph, number: int) -> None:
    """Every name is decided, and every reader can follow what it reads."""
    menus = menus_of(graph)
    given = first_placements(menus, number)
    given |= {p.name: p.placements[number % len(p.placements)] for p in menus.shared_parameters}
    strategies, storage, entries = dict(menus.shared_strategies), {}, {}
    for key in dict.fromkeys(menus.keys):
        column = menus.fixed(key, given).least(AT).column
        decided = menus.decisions(key, column)
        strategies |= decided.strategies
        storage |= decided.parameters
        entries[key] = decided.inputs
        assert set(decided.recomputed) <= set(decided.strategies)
    assignment = assign(graph, regions_of(graph, strategies, storage, entries), TP)
    assert set(assignment.strategies) == {node.name for node in graph.of_kind("call")}


def test_placements_that_are_not_offered_are_refused() -> None:
    menus = menus_of(TIED)
    with pytest.raises(ValueError, match="not in tuple"):
        menus.fixed("layers.0", {"/add": Shard(0)})


def test_menus_are_made_once() -> None:
    menus = menus_of(TIED)
    given = {"/add": Shard(1)}
    assert menus.fixed("layers.0", given) is menus.fixed("layers.0", {**given, "other": Shard(0)})
    assert menus.free("layers.0") is menus.free("layers.0")


def test_memory_that_costs_nothing_is_not_saved_by_running_again() -> None:
    menus = menus_of(chain(2, width=64, tokens=256))
    free = menus.free("layers.0")
    at = Prices(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    assert menus.decisions("layers.0", free.least(at).column).recomputed == ()
    dear = Prices(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0, kept_bytes=1.0)
    assert menus.decisions("layers.0", free.least(dear).column).recomputed
