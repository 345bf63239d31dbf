"""How blocks run, drawn: boxes hold all operators in an order, and nothing lies on another."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.plan_details import BlockFlow, FlowOperator, TensorRead
from autoplan.report.flow_boxes import Box, Drawing, drawing_of
from autoplan.report.layered import Layout, layout
from tests.unit.sample_timed import FLOW

WIDTH = 100.0


@st.composite
def graphs(draw: Any) -> tuple[int, list[tuple[int, int]]]:
    count = draw(st.integers(1, 12))
    pairs = [(a, b) for b in range(count) for a in range(b)]
    return count, draw(st.lists(st.sampled_from(pairs), max_size=20)) if pairs else []


@st.composite
def flows(draw: Any) -> BlockFlow:
    """Operators of a few modules that read one another."""
    operators = []
    for number in range(draw(st.integers(1, 9))):
        reads = st.builds(
            TensorRead,
            source=st.none() | st.integers(-2, number - 1),
            forward=st.sampled_from(["", "all_gather"]),
            nbytes=st.sampled_from([1024, 2048]),
        )
        operators.append(
            FlowOperator(
                name=f"{draw(st.sampled_from(['', 'a', 'a.b']))}/op{number}#{number}",
                placement=draw(st.sampled_from(["Replicate()", "Shard(1)"])),
                reads=tuple(draw(st.lists(reads, max_size=3))),
                flops=draw(st.sampled_from([0, 0, 9])),
                recomputed=draw(st.booleans()),
            )
        )
    last = TensorRead(source=len(operators) - 1)
    return BlockFlow(block="b", operators=tuple(operators), outputs=(last,))


def overlaps(found: Layout) -> list[tuple[int, int]]:
    pairs = itertools.combinations(range(len(found.x)), 2)
    return [
        (a, b)
        for a, b in pairs
        if found.layer[a] == found.layer[b] and abs(found.x[a] - found.x[b]) < WIDTH
    ]


@settings(deadline=None, max_examples=100)
@given(graphs())
def test_boxes_stand_behind_what_they_read_and_apart(graph: tuple[int, list]) -> None:
    count, edges = graph
    found = layout([WIDTH] * count, edges)
    assert overlaps(found) == []
    assert all(WIDTH / 2 - 1e-6 <= x <= found.width - WIDTH / 2 + 1e-6 for x in found.x)
    assert set(found.paths) == set(edges)
    for (source, target), path in found.paths.items():
        assert len(path) == found.layer[target] - found.layer[source] + 1 >= 2
        assert (path[0], path[-1]) == (found.x[source], found.x[target])


def test_a_chain_is_straight() -> None:
    found = layout([WIDTH] * 4, [(0, 1), (1, 2), (2, 3)])
    assert found.layer == (0, 1, 2, 3)
    assert len(set(found.x)) == 1
    assert found.width == WIDTH


def test_what_reads_nothing_stands_by_its_reader() -> None:
    assert layout([WIDTH] * 4, [(0, 1), (1, 3), (2, 3)]).layer == (0, 1, 1, 2)


def operators_in(box: Box) -> int:
    names = box.told.split(", ")
    return int(box.told.split()[0]) if box.told.endswith("operators") else len(names)


@settings(deadline=None, max_examples=100)
@given(flows())
def test_every_operator_is_in_a_box_and_reads_what_it_read(flow: BlockFlow) -> None:
    found = drawing_of(flow, ("Replicate()", "Shard(1)"))
    assert all(source < target for source, target in found.edges)
    boxes = [box for box in found.boxes if box.kind == "operators"]
    modules = Counter(each.name.rpartition("/")[0] or "the block" for each in flow.operators)
    assert sum((Counter({box.name: operators_in(box)}) for box in boxes), Counter()) == modules
    told = [name for box in boxes for name in box.told.split(", ") if "operators" not in name]
    assert len(set(told)) == len(told)
    again = {operator.recomputed for operator in flow.operators}
    assert {box.recomputed for box in boxes} == again
    assert {box.placement for box in boxes} == {each.placement for each in flow.operators}
    sent = any(read.forward for operator in flow.operators for read in operator.reads)
    assert any(box.kind == "message" for box in found.boxes) == sent
    layout([WIDTH] * len(found.boxes), found.edges)


def named(found: Drawing) -> list[tuple[str, str, bool]]:
    return [(box.name, box.told, box.recomputed) for box in found.boxes]


def test_a_flow_by_hand() -> None:
    found = drawing_of(FLOW, ("Replicate()",))
    assert named(found) == [
        ("enters the block", "Replicate()", False),
        ("norm", "layer_norm", True),
        ("back all_reduce", "128 MiB", False),
        ("all_gather, back reduce_scatter", "weights, 64.0 MiB", False),
        ("<script>up</script>", "linear", False),
        ("up", "gelu", True),
        ("down", "linear", False),
        ("all_reduce", "128 MiB", False),
        ("the block", "add", False),
        ("leaves the block", "", False),
    ]
    assert set(found.edges) == {
        (0, 1), (1, 2), (2, 4), (3, 4), (4, 5), (5, 6), (0, 8), (6, 7), (7, 8), (8, 9),
    }  # fmt: skip


def chain(*operators: tuple[str, int, int]) -> Drawing:
    """Operators (name, source, flops) that each read one other."""
    made = tuple(
        FlowOperator(
            name=name, placement="Shard(1)", reads=(TensorRead(source=source),), flops=flops
        )
        for name, source, flops in operators
    )
    return drawing_of(BlockFlow(block="b", operators=made, outputs=()), ("Shard(1)",))


def test_operators_of_a_module_are_one_box_but_for_what_computes_much() -> None:
    found = chain(("n/pow", -1, 0), ("n/mean", 0, 0), ("n/mul", 1, 0), ("n/linear", 2, 5))
    assert [box.told for box in found.boxes] == ["Shard(1)", "3 operators", "linear"]


def test_a_way_around_keeps_operators_apart() -> None:
    reads = (TensorRead(source=0), TensorRead(source=1))
    made = [
        FlowOperator(name="m/exp", placement="Shard(1)", reads=(TensorRead(source=-1),)),
        FlowOperator(name="other/abs", placement="Shard(1)", reads=(TensorRead(source=0),)),
        FlowOperator(name="m/add", placement="Shard(1)", reads=reads),
    ]
    flow = BlockFlow(block="b", operators=tuple(made), outputs=())
    assert [box.name for box in drawing_of(flow, ("Shard(1)",)).boxes] == [
        "enters the block", "m", "other", "m",
    ]  # fmt: skip
