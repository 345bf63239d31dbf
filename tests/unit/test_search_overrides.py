"""Placements that the user chooses: what they leave free is still the best, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.errors import PlanError
from autoplan.job import Job, Pins
from autoplan.plan import Plan
from autoplan.search.overrides import given_placements
from autoplan.search.planner import plan_job
from autoplan.sharding.assignment import assign
from autoplan.trace.graph import OpGraph
from tests.unit.search_graphs import gated_mlp, job, region_of, small_cluster, two_kinds

GATED = gated_mlp(2, width=12, hidden=12, tokens=3)


def overridden(asked: Job, **placements: str) -> Job:
    return replace(asked, placements=given_placements(placements))


def refusal(graph: OpGraph, asked: Job) -> str:
    with pytest.raises(PlanError) as caught:
        plan_job(graph, asked, small_cluster(gpus_per_node=16))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def stored(plan: Plan, graph: OpGraph) -> dict[str, str]:
    """The placement of every parameter."""
    storage = assign(graph, plan.regions, plan.mesh.tp).storage
    return {name: repr(placement) for name, placement in storage.items()}


@pytest.mark.parametrize("share", [2.0, 1.0])
def test_what_the_free_search_chose_may_be_said(share: float) -> None:
    """The placements of the best plan with tp=2, given as overrides, change nothing."""
    graph, asked = gated_mlp(4, width=128, hidden=512, tokens=512), job(batch=16, tp=2)
    peak = plan_job(graph, asked, small_cluster()).estimate.peak_memory_bytes
    cluster = small_cluster(int(peak * share))
    free = plan_job(graph, asked, cluster)
    said = {
        f"{name}" if region.kind == "" else f"layers.*.{name}": placement
        for region in free.regions
        for name, placement in region.parameters.items()
    }
    plan = plan_job(graph, overridden(asked, **said), cluster)
    assert plan.estimate.step_s == pytest.approx(free.estimate.step_s, rel=2.1e-3)
    assert stored(plan, graph) == stored(free, graph)
    assert "of these, what the pins and placements given allow" in plan.search.space


@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_an_override_holds_and_never_gains(data: st.DataObject) -> None:
    graph = two_kinds(2, width=64, tokens=512)
    names = ("inp.weight", "enc.*", "dec.*")
    taken = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    kinds = st.sampled_from(["Replicate()", "Shard(0)", "Shard(1)"])
    said = {glob: data.draw(kinds) for glob in taken}
    pins = {"tp": 2, "zero": data.draw(st.sampled_from([0, 1, 3]))}
    free = plan_job(graph, job(**pins), small_cluster())
    plan = plan_job(graph, overridden(job(**pins), **said), small_cluster())
    assert plan.estimate.step_s >= free.search.lower_bound_s * (1 - 1e-9)
    for name, placement in stored(plan, graph).items():
        for glob, wanted in said.items():
            assert placement == wanted or not fnmatchcase(name, glob)


def test_a_shard_leaves_no_mesh_without_tp() -> None:
    asked = overridden(job(gpus=4, batch=8), **{"layers.*.up.weight": "Shard(0)"})
    plan = plan_job(gated_mlp(2), asked, small_cluster())
    assert plan.mesh.tp > 1
    assert region_of(plan, "layers.0").parameters["up.weight"] == "Shard(0)"
    assert all(other.mesh.tp > 1 for other in plan.alternatives)


def test_kinds_are_overridden_apart() -> None:
    graph = two_kinds(3, width=64, tokens=64)
    pinned = job(tp=2)
    both = overridden(pinned, **{"enc.*": "Shard(0)", "dec.?.weight": "Replicate()"})
    plan = plan_job(graph, both, small_cluster())
    assert region_of(plan, "enc.0").parameters == {"weight": "Shard(0)"}
    assert region_of(plan, "dec.0").parameters == {"weight": "Replicate()"}


def test_a_tied_name_is_a_name() -> None:
    graph = replace(gated_mlp(2), tied=(("inp.weight", "out.weight"),))
    plan = plan_job(graph, overridden(job(tp=2), **{"out.*": "Shard(1)"}), small_cluster())
    assert region_of(plan, "").parameters["inp.weight"] == "Shard(1)"


def test_globs_that_agree_may_meet() -> None:
    asked = overridden(job(tp=2), **{"*.up.weight": "Shard(0)", "layers.*.up.*": "Shard(0)"})
    plan = plan_job(gated_mlp(2), asked, small_cluster())
    assert region_of(plan, "layers.0").parameters["up.weight"] == "Shard(0)"


@pytest.mark.parametrize(
    ("asked", "placements", "named"),
    [
        ({}, {"layers.*.upp.weight": "Shard(0)"}, "did you mean layers.*.up.weight?"),
        ({}, {"x": "Shard(0)"}, "placement x matches no parameter; parameters are inp.weight"),
        ({}, {"*.up.*": "Shard(2)"}, "of shape (12, 12) has dims 0 to 1"),
        ({}, {"layers.0.up.*": "Shard(0)"}, "takes layers.0.up.weight but not layers.1.up.weight"),
        ({}, {"layers.0.up.*": "Shard(0)"}, "match all of them, as layers.*.up.weight does"),
        ({"tp": 2}, {"*up.*": "Shard(0)", "*.weight": "Replicate()"}, "contradict each other"),
        ({"gpus": 1}, {"*": "Shard(0)"}, "over tp, which can only be 1 with these GPUs, pins and"),
        ({"tp": 1}, {"*": "Shard(0)"}, "sizes of the model; use Replicate()"),
        ({"dp": 4}, {"*": "Shard(0)"}, "sizes of the model; use Replicate()"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_what_can(asked: dict, placements: dict, named: str) -> None:
    assert named in refusal(GATED, overridden(job(**asked), **placements))


def test_a_dim_that_does_not_split_is_refused() -> None:
    """12 features split over two ranks, the 9 hidden ones never."""
    graph = gated_mlp(2, width=12, hidden=9, tokens=3)
    text = refusal(graph, overridden(job(gpus=2), **{"layers.*.up.weight": "Shard(0)"}))
    assert "dim 0 of layers.0.up.weight has size 9, which does not split over tp=2;" in text
    assert "use another dim of (9, 12) or Replicate()" in text
    plan = plan_job(graph, overridden(job(gpus=2), **{"*.up.*": "Shard(1)"}), small_cluster())
    assert plan.mesh.tp == 2


@pytest.mark.parametrize("text", ["Shard(-1)", "Partial(sum)", "Shard(0, parts=3)", "shard", "", 3])
def test_placements_are_dtensors_words(text: object) -> None:
    with pytest.raises(PlanError, match=r"expected Replicate\(\) or Shard\(dim\)"):
        given_placements({"*": text})


def test_placements_of_dtensor_are_taken() -> None:
    from torch.distributed.tensor import Replicate, Shard

    given = given_placements({"b": Shard(1), "a": Replicate()})
    assert given == (("a", "Replicate()"), ("b", "Shard(1)"))


def test_pins_and_overrides_go_together() -> None:
    asked = overridden(job(gpus=4), **{"*.down.weight": "Shard(1)"})
    plan = plan_job(gated_mlp(2), replace(asked, pins=Pins(tp=4, zero=0)), small_cluster())
    assert plan.mesh.tp == 4
    assert region_of(plan, "layers.0").parameters["down.weight"] == "Shard(1)"
