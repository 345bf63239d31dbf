"""Jobs that do not fit: the message, and that its cure works."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from autoplan.errors import InfeasibleError
from autoplan.job import Job, Pins
from autoplan.search.planner import plan_job
from hardware_profiles.spec import ClusterSpec
from tests.unit.search_graphs import gated_mlp, job, small_cluster

GRAPH = gated_mlp(6, width=128, hidden=512, tokens=512)


def refusal(asked: Job, cluster: ClusterSpec) -> str:
    with pytest.raises(InfeasibleError) as caught:
        plan_job(GRAPH, asked, cluster)
    text = str(caught.value)
    assert "\n" not in text
    return text


def smallest(asked: Job) -> int:
    """Peak of the fastest plan where memory is plenty."""
    return plan_job(GRAPH, asked, small_cluster()).estimate.peak_memory_bytes


@pytest.mark.parametrize(
    ("pins", "freed"),
    [
        ({"dp": 4, "recompute": "none", "microbatch": 2}, "recompute"),
        ({"dp": 4, "recompute": "full", "microbatch": 1, "zero": 0}, "zero"),
        ({"dp": 4, "recompute": "full", "microbatch": 2, "zero": 3}, "microbatch"),
    ],
)
def test_a_pin_that_costs_too_much_is_named(pins: dict, freed: str) -> None:
    rest = {name: value for name, value in pins.items() if name != freed}
    least = {"recompute": "full", "zero": 3, "microbatch": 1}[freed]
    limit = smallest(job(**{**rest, freed: least})) * 102 // 100
    asked, cluster = job(**pins), small_cluster(limit)
    text = refusal(asked, cluster)
    assert f"without the pin {freed}={pins[freed]} it fits" in text
    free = replace(asked, pins=replace(asked.pins, **{freed: None}))
    assert plan_job(GRAPH, free, cluster).estimate.peak_memory_bytes <= limit


def test_a_memory_limit_that_is_too_tight_is_named() -> None:
    asked = job(dp=4, recompute="none", zero=0, microbatch=1)
    least = smallest(asked)
    text = refusal(replace(asked, memory_limit_bytes=least // 2), small_cluster(2 * least))
    assert f"than the {least // 2 / 2**30:.1f} GiB there are" in text
    assert "without the memory limit it fits" in text


def test_placements_that_take_too_much_are_named() -> None:
    asked = job(tp=4, zero=0, recompute="full", microbatch=1)
    whole = replace(asked, placements=(("layers.*", "Replicate()"),))
    cluster = small_cluster(smallest(asked) * 102 // 100)
    assert "without the placements it fits" in refusal(whole, cluster)


def test_more_nodes_are_proposed_when_they_fit() -> None:
    asked = job(gpus=2, batch=16)
    bigger = smallest(replace(asked, nodes=4, pins=Pins(zero=3, recompute="full", microbatch=1)))
    cluster = small_cluster(bigger * 104 // 100)
    text = refusal(asked, cluster)
    nodes = int(re.search(r"it fits on (\d+) nodes", text)[1])  # type: ignore[index]
    assert plan_job(GRAPH, replace(asked, nodes=nodes), cluster).estimate.peak_memory_bytes > 0


def test_the_overflow_is_stated_by_category() -> None:
    text = refusal(job(gpus=1, nodes=1), small_cluster(2**16))
    told = r"needs \d+\.\d GiB on the fullest GPU, \d+\.\d GiB more than the 0\.0 GiB"
    assert re.search(told, text)
    assert re.search(r"\((activations|transient|workspace|gradients|optimizer state): ", text)
    assert "none of the usual changes helps" in text
