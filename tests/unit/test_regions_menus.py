"""Menus of regions against all assignments of random small models, counted by the rules."""

import math
import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.search.folded_graph import fold
from autoplan.search.operator_costs import microbatch_costs
from autoplan.search.regions import menu as menu_module
from autoplan.search.regions.column import Prices, value_of
from autoplan.search.regions.menus import RegionMenus, region_menus
from autoplan.search.space import build_space
from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.placement import Placement
from autoplan.sharding.rules import GraphRules
from autoplan.trace.graph import OpGraph, Ref
from autoplan.trace.stack import stack_of
from tests.unit.region_graphs import BLOCKS, random_model
from tests.unit.region_oracle import Amounts, RegionOracle, Way
from tests.unit.search_graphs import small_cluster

TP = 2
CLUSTER = small_cluster()
SEEDS = st.integers(0, 10**6)
AMOUNTS = (
    "forward_s", "backward_input_s", "backward_weight_s", "kept_bytes", "recomputed_bytes",
    "trained_elements", "frozen_elements",
)  # fmt: skip
MODES = {"none": ("nothing",), "full": ("all",), "free": ("nothing", "calls", "all")}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A random model of which every decision has two or three options."""

    graph: OpGraph
    menus: RegionMenus
    draw: random.Random

    def crossing(self) -> dict[str, Placement]:
        return {b.name: self.draw.choice(b.placements) for b in self.menus.boundaries}

    def oracle(self, key: str) -> RegionOracle:
        """The region counted by the rules."""
        blocks = self.graph.kinds.get(key, ())
        stream, side = Ref("inp/linear"), Ref("side/linear")
        left = blocks[0].outputs[0] if blocks else None
        names = {ref.node: boundary.name for boundary in self.menus.boundaries
                 for ref in boundary.members}  # fmt: skip
        last = self.graph.blocks[-1].outputs[0]
        names[last.node] = names[self.graph.representative[last.node]]
        made = {ref: names[ref.node] for ref in (stream, side) if ref.node in names}
        return RegionOracle(
            self.graph,
            self.menus.costs,
            CLUSTER,
            calls=blocks[0].nodes if blocks else self.item(key),
            is_block=bool(blocks),
            entries=self.entries(key, made, {last: names[last.node]}),
            exits={left: names[left.node]} if left else made if key == "inp/linear" else {},
            alike=frozenset({"side/linear"} & set(names.values())),
        )

    def entries(self, key: str, made: dict[Ref, str], last: dict[Ref, str]) -> dict[Ref, str]:
        if key in self.graph.kinds:
            inputs = self.graph.kinds[key][0].inputs
            return {ref: name for ref, name in made.items() if ref in inputs}
        return {} if key == "inp/linear" else last

    def item(self, key: str) -> tuple[str, ...]:
        return next(item.calls for item in self.menus.stack.items if item.name == key)


def case(seed: int, recompute: str, operators: int = 3) -> Case:
    draw = random.Random(seed)
    graph = random_model(seed, operators=operators)
    rules, axis = GraphRules(graph), MeshAxis("tp", TP)
    space = build_space(fold(graph), axis, rules.strategies)
    few = []
    for name, options in zip(space.names, space.strategies, strict=True):
        others = draw.sample(options[1:], min(len(options) - 1, draw.choice([1, 1, 2])))
        few.append(options if "<" in name else (options[0], *others))
    costs = microbatch_costs(replace(space, strategies=tuple(few)), 2, CLUSTER, 4)
    menus = region_menus(stack_of(graph), costs, recompute)  # type: ignore[arg-type]
    return Case(graph=graph, menus=menus, draw=draw)


def prices(draw: random.Random) -> Prices:
    """Seconds count about as much as bytes and elements; some amounts are free."""

    def price(scale: float) -> float:
        return draw.choice([0.0, scale * 10 ** draw.uniform(-2, 1)])

    return Prices(
        forward_s=price(1), backward_input_s=1.0, backward_weight_s=price(1),
        kept_bytes=price(1e-10), recomputed_bytes=price(1e-11), trained_elements=price(1e-10),
        frozen_elements=price(1e-10),
    )  # fmt: skip


def cost(amounts: Amounts, at: Prices) -> float:
    return sum(getattr(at, name) * getattr(amounts, name) for name in AMOUNTS)


@given(SEEDS, st.sampled_from(["free", "none", "full"]))
@settings(deadline=None, max_examples=25)
def test_the_least_value_is_that_of_all_assignments(seed: int, recompute: str) -> None:
    made = case(seed, recompute)
    for key in dict.fromkeys(made.menus.keys):
        oracle, crossing = made.oracle(key), made.crossing()
        modes = MODES[recompute] if key in made.graph.kinds and oracle.needed() else ("nothing",)
        ways = [oracle.amounts(way) for way in oracle.ways(crossing, modes)]
        menu = made.menus.fixed(key, crossing)
        for _ in range(3):
            at = prices(made.draw)
            best = min(cost(amounts, at) for amounts in ways if amounts is not None)
            assert menu.least(at).value == pytest.approx(best, rel=1e-9, abs=1e-15)


@given(SEEDS)
@settings(deadline=None, max_examples=15)
def test_the_least_memory_is_that_of_all_assignments(seed: int) -> None:
    made = case(seed, "free")
    for key in dict.fromkeys(made.menus.keys):
        oracle, crossing = made.oracle(key), made.crossing()
        modes = MODES["free"] if key in made.graph.kinds and oracle.needed() else ("nothing",)
        ways = [oracle.amounts(way) for way in oracle.ways(crossing, modes)]
        at = replace(
            prices(made.draw), forward_s=0.0, backward_input_s=0.0, backward_weight_s=0.0,
            kept_bytes=1e-10, recomputed_bytes=0.0,
        )  # fmt: skip
        best = min(cost(amounts, at) for amounts in ways if amounts is not None)
        found = made.menus.fixed(key, crossing).least_values([at])[0]
        assert found == pytest.approx(best, rel=1e-9, abs=1e-15)


@given(SEEDS, st.floats(0.0, 1.0))
@settings(deadline=None, max_examples=15)
def test_the_least_value_within_a_limit_is_that_of_all_assignments(seed: int, part: float) -> None:
    made = case(seed, "free")
    for key in dict.fromkeys(made.menus.keys):
        oracle, crossing = made.oracle(key), made.crossing()
        modes = MODES["free"] if key in made.graph.kinds and oracle.needed() else ("nothing",)
        ways = [way for way in map(oracle.amounts, oracle.ways(crossing, modes)) if way is not None]
        free = replace(prices(made.draw), kept_bytes=0.0, recomputed_bytes=0.0)
        weights = replace(
            free, forward_s=0.0, backward_input_s=0.0, backward_weight_s=0.0, kept_bytes=3.0,
            recomputed_bytes=1.0, trained_elements=16.0, frozen_elements=2.0,
        )  # fmt: skip
        held = sorted(cost(amounts, weights) for amounts in ways)
        limit = held[0] + part * (held[-1] - held[0]) + 1e-6
        best = min(cost(each, free) for each in ways if cost(each, weights) <= limit)
        found = made.menus.fixed(key, crossing).within(free, weights, limit)
        assert best * (1 - 1e-3) <= found.bound <= best * (1 + 1e-9)
        assert found.column is not None
        assert value_of(found.column, weights) <= limit
        assert value_of(found.column, free) == pytest.approx(best, rel=1e-3)
        assert made.menus.fixed(key, crossing).within(free, weights, held[0] - 1.0).column is None


@given(SEEDS)
@settings(deadline=None, max_examples=10)
def test_what_one_microbatch_has_made_serves_another(seed: int) -> None:
    first = case(seed, "free")
    for key in dict.fromkeys(first.menus.keys):
        first.menus.free(key).least(prices(first.draw))
    costs = microbatch_costs(first.menus.costs.space, 6, CLUSTER, 4)
    made = replace(first, menus=region_menus(first.menus.stack, costs))
    for key in dict.fromkeys(made.menus.keys):
        oracle, crossing = made.oracle(key), made.crossing()
        modes = MODES["free"] if key in made.graph.kinds and oracle.needed() else ("nothing",)
        ways = [oracle.amounts(way) for way in oracle.ways(crossing, modes)]
        at = prices(made.draw)
        best = min(cost(amounts, at) for amounts in ways if amounts is not None)
        found = made.menus.fixed(key, crossing).least(at).value
        assert found == pytest.approx(best, rel=1e-9, abs=1e-15)


@given(SEEDS)
@settings(deadline=None, max_examples=60)
def test_columns_take_what_their_choices_say(seed: int) -> None:
    made = case(seed, "free", operators=6)
    for key in dict.fromkeys(made.menus.keys):
        crossing, oracle, at = made.crossing(), made.oracle(key), prices(made.draw)
        least = made.menus.fixed(key, crossing).least(at)
        assert least.value == value_of(least.column, at)
        chosen = made.menus.decisions(key, least.column)
        labels = {
            name: next(s for s in made.menus.costs.space.of(name) if s.label == label)
            for name, label in chosen.strategies.items()
        }
        block = made.graph.kinds.get(key, (None,))[0]
        again = {name for name in chosen.recomputed if not oracle.is_view(made.graph.by_name[name])}
        again |= {block.inputs[k].node for k in chosen.converted_again} if block else set()
        mode = "all" if chosen.recomputes_all else "calls" if least.column.choices[0] else "nothing"
        found = oracle.amounts(
            Way(
                mode=mode, strategies=labels, storage=chosen.parameters, crossing=crossing,
                again=frozenset(again),
            )
        )  # fmt: skip
        assert found is not None
        for name in (*AMOUNTS, "operator_bytes"):
            expected = getattr(found, name)
            assert getattr(least.column, name) == pytest.approx(expected, rel=1e-9, abs=1e-18)
        sent = least.column.forward_messages_s, least.column.backward_messages_s
        assert sent == pytest.approx(found.messages_s, rel=1e-9, abs=1e-18)
        by_kind = made.menus.messages(key, least.column)
        assert sum(one.seconds for one in by_kind.values()) == pytest.approx(
            sum(sent), rel=1e-9, abs=1e-18
        )


@given(SEEDS, st.sampled_from(["free", "none", "full"]))
@settings(deadline=None, max_examples=40)
def test_values_at_many_prices_are_those_at_each(seed: int, recompute: str) -> None:
    made, other = case(seed, recompute, operators=6), case(seed, recompute, operators=6)
    for key in dict.fromkeys(made.menus.keys):
        asked = [prices(made.draw) for _ in range(made.draw.choice([0, 1, 7, 120]))]
        asked += made.draw.sample(asked, len(asked) // 2)
        crossing = made.draw.choice([{}, made.crossing()])
        menu, each = made.menus.fixed(key, crossing), other.menus.fixed(key, crossing)
        values = menu.least_values(asked)
        assert values.shape == (len(asked),)
        assert menu.least_values(asked[::-1]).tolist() == values[::-1].tolist()
        few = [*asked[:9], *(prices(made.draw) for _ in range(3))]
        expected = [each.least(at).value for at in few]
        assert menu.least_values(few) == pytest.approx(expected, rel=1e-12, abs=0)


@given(SEEDS)
@settings(deadline=None, max_examples=20)
def test_free_menus_are_the_best_of_the_fixed_ones(seed: int) -> None:
    made = case(seed, "free", operators=5)
    menus = made.menus
    for key in dict.fromkeys(menus.keys):
        at = prices(made.draw)
        combinations = [{}]
        for boundary in menus.boundaries:
            combinations = [
                {**known, boundary.name: placement}
                for known in combinations
                for placement in boundary.placements
            ]
        best = min(menus.fixed(key, known).least(at).value for known in combinations)
        assert menus.free(key).least(at).value == pytest.approx(best, rel=1e-12, abs=1e-18)


@given(SEEDS)
@settings(deadline=None, max_examples=20)
def test_least_values_are_concave_and_bound_all_columns(seed: int) -> None:
    made = case(seed, "free", operators=5)
    for key in dict.fromkeys(made.menus.keys):
        menu = made.menus.free(key)
        first, second = prices(made.draw), prices(made.draw)
        mixed = Prices(**{n: (getattr(first, n) + getattr(second, n)) / 2 for n in AMOUNTS})
        one, two, middle = menu.least(first), menu.least(second), menu.least(mixed)
        assert middle.value >= (one.value + two.value) / 2 * (1 - 1e-12)
        for at, least in ((first, one), (second, two), (mixed, middle)):
            for other in (one, two, middle):
                assert least.value <= value_of(other.column, at) * (1 + 1e-12) + math.ulp(1e-9)


@given(SEEDS)
@settings(deadline=None, max_examples=10)
def test_answers_do_not_depend_on_what_was_asked_before(seed: int) -> None:
    at = Prices(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    one, other = case(seed, "free", 5), case(seed, "free", 5)
    for key in dict.fromkeys(one.menus.keys):
        other.menus.free(key).least(prices(other.draw))
        assert one.menus.free(key).least(at) == other.menus.free(key).least(at)


@given(SEEDS)
@settings(deadline=None, max_examples=20)
def test_recomputing_everything_keeps_what_enters_alone(seed: int) -> None:
    made = case(seed, "full", operators=5)
    key, crossing = "layers.0", made.crossing()
    oracle = made.oracle(key)
    column = made.menus.fixed(key, crossing).least(prices(made.draw)).column
    entering = sum(
        made.menus.costs.sizes.meta(ref).nbytes
        / (TP if "Shard" in repr(crossing[name]) else 1)
        / (BLOCKS if name in oracle.alike else 1)
        for ref, name in oracle.entries.items()
    )
    if oracle.needed():
        assert column.kept_bytes == pytest.approx(entering)


def is_needed(made: Case) -> bool:
    return bool(made.oracle(next(iter(made.graph.kinds))).needed())


def test_blocks_that_hang_together_run_again_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where single calls would be too many choices, the least is over the two other modes."""
    made = next(made for made in (case(seed, "free") for seed in range(20)) if is_needed(made))
    key = next(iter(made.graph.kinds))
    monkeypatch.setattr(menu_module, "elimination_order", lambda sizes, scopes: None)
    oracle, crossing = made.oracle(key), made.crossing()
    ways = [oracle.amounts(way) for way in oracle.ways(crossing, ("nothing", "all"))]
    for _ in range(3):
        at = replace(prices(made.draw), kept_bytes=1e-10)
        best = min(cost(amounts, at) for amounts in ways if amounts is not None)
        found = made.menus.fixed(key, crossing).least(at).value
        assert found == pytest.approx(best, rel=1e-9, abs=1e-15)
    assert made.menus.without_calls == {key}
