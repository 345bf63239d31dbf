"""Sizing clusters: the numbers of nodes, by search and by trying all of them."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from autoplan.amounts import count
from autoplan.cli import main
from autoplan.errors import PlanError
from autoplan.job import Job, ModelSource, Pins
from autoplan.plan import Plan
from autoplan.report.sizing import print_sizing, summary
from autoplan.search.planner import plan_job
from autoplan.sizing import clusters
from autoplan.sizing.clusters import Site, size_all
from autoplan.sizing.goal import DAY_S, Goal, at_least, least_nodes, node_counts
from autoplan.sizing.nodes import NodeSearch
from autoplan.sizing.processes import worked_on
from autoplan.sizing.series import Series
from autoplan.sizing.sizes import ClusterSizes, SizedPlan, Sizing, sizes_of
from hardware_profiles.load import load
from hardware_profiles.spec import ClusterSpec
from tests.unit.sample_plan import ESTIMATE, PLAN
from tests.unit.search_graphs import gated_mlp

TOKENS = 128
GRAPH = gated_mlp(4, width=512, hidden=2048, tokens=TOKENS, dtype="bfloat16")
DGX = load("dgx-h100")


def job_on(cluster: ClusterSpec, nodes: int = 1) -> Job:
    return Job(
        model=ModelSource(kind="object", name="mlp", seq_len=TOKENS),
        cluster=cluster.name,
        nodes=nodes,
        gpus_per_node=cluster.gpus_per_node,
        global_batch=256,
        pins=Pins(pp=1, tp=1),
    )


def quiet(fraction: float, what: str) -> None:
    pass


@pytest.mark.parametrize(
    ("text", "number"), [("1T", 1e12), ("300B", 3e11), ("1.5e12", 1.5e12), ("7m", 7e6), (5, 5.0)]
)
def test_tokens_as_people_write_them(text: str, number: float) -> None:
    assert count("tokens", text) == number


@pytest.mark.parametrize("text", ["", "T", "-1T", "0", "1Q", "nan", "inf", "1 trillion"])
def test_what_is_no_number_of_tokens_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="give a number above 0"):
        count("tokens", text)


def test_node_counts_are_powers_of_two_and_three_times_such() -> None:
    assert node_counts(20) == (1, 2, 3, 4, 6, 8, 12, 16, 20)
    assert at_least(node_counts(20), 5) == 4
    assert at_least(node_counts(20), 21) == 9


def test_days_are_whole_steps_of_all_tokens() -> None:
    goal = Goal(tokens=1e9, days=1)
    steps = math.ceil(1e9 / (64 * 1024))
    assert goal.steps(PLAN.job) == steps
    assert goal.days_of(PLAN.job, ESTIMATE.step_s) == pytest.approx(steps * 0.25 / DAY_S)


def test_no_plan_needs_fewer_nodes_than_the_peak_rate() -> None:
    job = job_on(DGX)
    plan = Series(GRAPH, job, DGX).whole(job)
    step_tokens = job.global_batch * TOKENS
    goal = Goal(tokens=1e6 * step_tokens, days=1e6 * plan.estimate.step_s / DAY_S)
    # The plan reaches this goal on one node with its share of the peak rate.
    assert least_nodes(GRAPH, job, DGX, goal) == pytest.approx(plan.estimate.mfu)


class _Curve:
    """Stands for a series: seconds of a step by nodes; some do not fit, others have no mesh."""

    graph, cluster = GRAPH, DGX

    def __init__(self, seconds: dict[int, float | None], refused: set[int]) -> None:
        self.seconds, self.refused = seconds, refused
        self.asked: list[int] = []

    def quick(self, job: Job, deadline: object) -> Plan | None:
        self.asked.append(job.nodes)
        if job.nodes in self.refused:
            raise PlanError("no mesh")
        step_s = self.seconds[job.nodes]
        return None if step_s is None else planned(job, step_s, step_s)

    def whole(self, job: Job, deadline: object) -> Plan:
        raise AssertionError("a plan without a gap is searched no further")


def planned(job: Job, step_s: float, bound_s: float) -> Plan:
    record = replace(PLAN.search, gap=1 - bound_s / step_s, lower_bound_s=bound_s)
    return replace(PLAN, job=job, estimate=replace(ESTIMATE, step_s=step_s), search=record)


def sizes_by(series: object, goal: Goal, most_nodes: int) -> ClusterSizes:
    return NodeSearch(series, job_on(DGX), goal, most_nodes=most_nodes).sizes()  # pyright: ignore[reportArgumentType]


@settings(deadline=None, max_examples=50)
@given(
    factors=st.lists(st.floats(0.4, 1.0), min_size=16, max_size=16),
    too_small=st.integers(0, 4),
    refused=st.sets(st.integers(0, 15), max_size=3),
    goal_s=st.floats(1e-4, 1e3),
)
def test_the_fewest_nodes_are_those_of_trying_all(
    factors: list[float], too_small: int, refused: set[int], goal_s: float
) -> None:
    counts = node_counts(2**8)
    seconds: dict[int, float | None] = {}
    step_s = 1000.0
    for place, factor in enumerate(factors):
        step_s *= factor
        seconds[counts[place]] = None if place < too_small else step_s
    curve = _Curve(seconds, {counts[place] for place in refused})
    steps = 10**6
    tokens = steps * job_on(DGX).global_batch * TOKENS
    goal = Goal(tokens=float(tokens), days=steps * goal_s / DAY_S)
    least = least_nodes(GRAPH, job_on(DGX), DGX, goal)
    allowed = [n for n in counts if n >= least and n not in curve.refused]
    truth = next((n for n in allowed if (known := seconds[n]) and known <= goal_s), None)
    found = sizes_by(curve, goal, 2**8)
    assert (found.smallest.nodes if found.smallest else None) == truth
    assert bool(found.reason) == (truth is None)
    assert len(curve.asked) == len(set(curve.asked))


class _Open(_Curve):
    """Quick plans take 5 % longer than the best ones, and their bounds are 5 % below these."""

    def quick(self, job: Job, deadline: object) -> Plan | None:
        return planned(job, 2.1 / job.nodes, 1.9 / job.nodes)

    def whole(self, job: Job, deadline: object) -> Plan:
        return planned(job, 2.0 / job.nodes, 2.0 / job.nodes)


def test_where_a_bound_leaves_it_open_everything_is_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clusters, "worked_on", lambda work, items: worked_on(work, items, most=1))
    monkeypatch.setattr(clusters, "Series", lambda *given, like: _Open({}, set()))
    steps = 1000
    goal = Goal(tokens=float(steps * job_on(DGX).global_batch * TOKENS), days=steps * 0.5 / DAY_S)
    quick = sizes_by(_Open({}, set()), goal, 64)
    assert (quick.smallest.nodes if quick.smallest else None) == 6
    assert [plan.nodes for plan in quick.plans if plan.is_open(goal)] == [4]
    site = Site(job=job_on(DGX), cluster=DGX, most_nodes=64)
    (found,) = size_all(GRAPH, [site], goal, progress=quiet).clusters
    assert found.smallest is not None
    assert (found.smallest.nodes, found.smallest.is_whole) == (4, True)


def test_a_quick_plan_keeps_what_it_says() -> None:
    job = job_on(DGX, nodes=2)
    series = Series(GRAPH, job, DGX)
    quick, whole = series.quick(job), series.whole(job)
    assert quick is not None
    assert quick.search.lower_bound_s <= whole.estimate.step_s <= quick.estimate.step_s
    assert quick.estimate.peak_memory_bytes <= quick.estimate.memory_limit_bytes


def test_plans_of_a_series_are_those_of_the_planner() -> None:
    a100 = load("dgx-a100-80g")
    series = Series(GRAPH, job_on(DGX), DGX)
    series.whole(job_on(DGX))
    other = Series(GRAPH, job_on(a100), a100, like=series)
    for nodes in (1, 2):
        job = job_on(a100, nodes)
        assert other.whole(job) == replace(plan_job(GRAPH, job, a100), alternatives=())


def test_the_answers_are_the_least_of_all_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "worked_on", lambda work, items: worked_on(work, items, most=1))
    profiles = [load(name) for name in ("dgx-h100", "p5", "p4d")]
    sites = [Site(job=job_on(each), cluster=each, most_nodes=2) for each in profiles]
    step_s = Series(GRAPH, job_on(DGX), DGX).whole(job_on(DGX)).estimate.step_s
    steps = 10**6
    tokens = steps * job_on(DGX).global_batch * TOKENS
    goal = Goal(tokens=float(tokens), days=steps * step_s * 1.5 / DAY_S)
    sizing = size_all(GRAPH, sites, goal, progress=quiet)
    plans = sizing.in_time()
    assert plans
    assert sizing.smallest.devices == min(each.devices for each in plans)  # pyright: ignore[reportOptionalMemberAccess]
    least = sizing.least_gpu_hours
    assert least is not None
    assert least.is_whole
    assert least.gpu_hours == min(each.gpu_hours for each in plans)
    cheapest = sizing.cheapest
    assert cheapest is not None
    price = load(cheapest.plan.job.cluster).price_per_gpu_hour_usd
    assert cheapest.usd == pytest.approx(24 * cheapest.days * cheapest.devices * (price or 0.0))
    record = json.loads(json.dumps(summary(sizing), allow_nan=False))
    assert [each["cluster"] for each in record["clusters"]] == ["dgx-h100", "p5", "p4d"]
    assert record["clusters"][0]["smallest"]["step_s"] > 0


def test_what_cannot_be_in_time_is_not_planned() -> None:
    goal = Goal(tokens=1e18, days=1)
    found = sizes_by(_Curve({}, set()), goal, 8)
    assert found.smallest is None
    assert "even at the peak rate" in found.reason


def _square(number: int) -> int:
    if number == 13:
        raise PlanError("unlucky")
    return number * number


@pytest.mark.parametrize("most", [1, 2])
def test_work_in_processes_is_the_same(most: int) -> None:
    assert dict(worked_on(_square, [3, 4, 5], most=most)) == {0: 9, 1: 16, 2: 25}
    with pytest.raises(PlanError, match="unlucky"):
        list(worked_on(_square, [13, 13], most=most))


def sizing_of(cluster: str, *plans: tuple[int, float, float], goal_days: float = 10.0) -> Sizing:
    """One cluster with plans by nodes, their days and the fewest days that are possible."""
    profile, goal = load(cluster), Goal(tokens=1e12, days=goal_days)
    rows = [
        SizedPlan(
            plan=planned(job_on(profile, nodes), days, least),
            days=days,
            least_days=least,
            price_per_gpu_hour_usd=profile.price_per_gpu_hour_usd,
            is_whole=days == least,
        )
        for nodes, days, least in plans
    ]
    sizes = sizes_of(cluster, profile.device.name, rows, goal, "too late")
    return Sizing(goal=goal, job=job_on(profile), clusters=(sizes,))


def printed(found: Sizing) -> str:
    output = io.StringIO()
    print_sizing(found, Console(file=output, width=100, highlight=False))
    return " ".join(output.getvalue().split())


def test_the_table_has_nodes_days_hours_and_money() -> None:
    text = printed(sizing_of("p5", (2, 12.0, 11.0), (4, 8.0, 8.0), (8, 3.0, 2.4)))
    # 8 nodes: 3 x 24 h x 64 GPUs at 12.29 USD; 4 nodes: 8 x 24 x 32.
    assert "Smallest: p5, 4 nodes with 32 devices, 8.0 days, 6.14k GPU hours." in text
    assert "Fewest GPU hours: p5, 8 nodes with 64 devices, 3.0 days, 4.61k GPU hours." in text
    assert "56.6k USD at an assumed 12.29 USD per GPU hour." in text
    assert "p5 8 64 3.0 4.61k 56.6k USD 41 % 20 %*" in text
    assert "p5 4 32 8.0 6.14k 75.5k USD 41 % 0 %" in text
    assert "p5 2 nodes 12.0 days, 4.61k GPU hours" in text


def test_late_plans_say_what_is_left_open() -> None:
    text = printed(sizing_of("dgx-h100", (2, 12.0, 9.0)))
    assert "No cluster that was looked at reaches it." in text
    assert "2 nodes 12.0 days (9.0 at least)" in text
    assert "dgx-h100 too late" in text


def test_without_prices_no_cluster_is_cheapest() -> None:
    found = sizing_of("dgx-h100", (2, 9.0, 9.0))
    assert found.cheapest is None
    assert "none of these profiles states a price" in printed(found)
    assert summary(found)["cheapest"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tokens", "many", "--days", "1"], "tokens many: give a number above 0"),
        (["--tokens", "1T", "--days", "0"], "0 days: give a number above 0"),
        (["--tokens", "1T", "--days", "1", "--clusters", ","], "--clusters: give names"),
        (["--tokens", "1T", "--days", "1", "--clusters", "dgx-h10"], "did you mean 'dgx-h100'?"),
        (["--tokens", "1T", "--days", "1", "--max-nodes", "0"], "max nodes 0"),
        (["--tokens", "1T", "--days", "1", "-o", "nowhere/plans"], "create it first"),
    ],
)
def test_questions_without_an_answer_are_refused_in_a_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture
) -> None:
    assert main(["size", "gpt2", *arguments]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert said in printed.err
