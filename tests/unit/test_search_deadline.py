"""Plans of searches that end before they are done: what they say of themselves is true."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from autoplan import plan_io
from autoplan.errors import InfeasibleError, PlanError
from autoplan.job import Pins
from autoplan.search.deadline import Deadline
from autoplan.search.planner import plan_job
from tests.unit.search_graphs import gated_mlp, job, small_cluster

CLUSTER = small_cluster()
GRAPH = gated_mlp(4, width=128, hidden=512, tokens=512)
WITHOUT = job(gpus=4, batch=16)
OVER_PIPELINES = replace(WITHOUT, planned_only=True)
JOBS = pytest.mark.parametrize("asked", [WITHOUT, OVER_PIPELINES], ids=["without", "pipelines"])


class After(Deadline):
    """Comes when it has been asked about so often."""

    def __init__(self, times: int) -> None:
        super().__init__(3600)
        self.left = times

    @property
    def is_over(self) -> bool:
        self.left -= 1
        return self.left < 0


@JOBS
def test_a_limit_that_is_not_reached_changes_nothing(asked):
    plans = [plan_job(GRAPH, asked, CLUSTER, deadline=end) for end in (None, Deadline(1e6))]
    assert plan_io.to_json(plans[0]) == plan_io.to_json(plans[1])
    assert "cut short" not in plans[0].search.space


@JOBS
def test_what_is_cut_says_so_and_its_bound_holds(asked):
    """Where memory is short, so that the standard recipes are not the best at once."""
    most = plan_job(GRAPH, asked, CLUSTER).estimate.peak_memory_bytes
    asked = replace(asked, memory_limit_bytes=int(0.6 * most))
    best_s = plan_job(GRAPH, asked, CLUSTER).estimate.step_s
    cut = []
    for times in range(1, 25):
        try:
            plan = plan_job(GRAPH, asked, CLUSTER, deadline=After(times))
        except PlanError:
            assert not cut
            continue
        assert plan.search.lower_bound_s <= best_s * (1 + 1e-12)
        assert plan.estimate.step_s >= best_s * (1 - 1e-3)
        if "cut short after 3600 s" in plan.search.space:
            cut.append(plan)
        elif plan.alternatives:
            break
    assert cut
    assert plan_io.from_json(plan_io.to_json(cut[0])) == cut[0]


@pytest.mark.parametrize("pins", [Pins(), Pins(pp=2)], ids=str)
def test_no_plan_in_time_is_no_claim_that_none_fits(pins):
    asked = replace(WITHOUT, pins=pins)
    with pytest.raises(PlanError, match=r"time limit of 1e-09 s.*does not mean.*allow more time"):
        plan_job(GRAPH, asked, CLUSTER, deadline=Deadline(1e-9))


def test_what_does_not_fit_is_told_in_time():
    """With no time what overflows, with more also what would help."""
    asked = job(gpus=4, batch=16, dp=4, zero=0, microbatch=4, recompute="none")
    asked = replace(asked, memory_limit_bytes=CLUSTER.device.workspace_bytes)
    heard = []
    for times in range(20):
        with pytest.raises(InfeasibleError) as caught:
            plan_job(GRAPH, asked, CLUSTER, deadline=After(times))
        heard.append(str(caught.value))
        if heard[-1].endswith("without the memory limit it fits"):
            break
    assert len(heard) > 1
    for text in heard[:-1]:
        assert re.search(r"no plan fits.*no change that fits was found within.* 3600 s", text)


@pytest.mark.parametrize("limit_s", [0, -1, float("nan")])
def test_a_limit_is_positive(limit_s):
    with pytest.raises(PlanError, match="is not positive; give seconds above 0"):
        Deadline(limit_s)
