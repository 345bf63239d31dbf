"""An excerpt holds the same nodes as the whole graph, at every batch."""

from __future__ import annotations

from autoplan.sharding.excerpt import excerpt
from tests.unit.search_graphs import gated_mlp

GRAPH = gated_mlp(3)
NAMES = {name for name in GRAPH.by_name if not name.startswith(("layers.1", "layers.2"))}


def test_its_nodes_are_those_of_the_graph_at_every_batch() -> None:
    few = excerpt(GRAPH, NAMES)
    for batch in (GRAPH.batch, 7):
        whole = GRAPH.at_batch(batch)
        for name in NAMES:
            assert few.at_batch(batch).by_name[name] == whole.by_name[name]


def test_what_else_is_read_is_an_input_of_the_same_size() -> None:
    few = excerpt(GRAPH, NAMES)
    others = [node for node in few.nodes if node.name not in NAMES]
    assert {node.name for node in others} == {GRAPH.blocks[-1].outputs[0].node}
    for node in others:
        assert (node.kind, node.operands) == ("input", ())
        assert node.outputs == GRAPH.by_name[node.name].outputs
