"""What one ``cp`` rank's graph and plans on it take, against closed forms and models alike."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from autoplan.codegen.runnable import obstacle
from autoplan.errors import PlanError
from autoplan.explanation import Question
from autoplan.export.frameworks import export
from autoplan.job import Pins
from autoplan.plan import Plan
from autoplan.plan_io import from_json, to_json
from autoplan.search.exchange_costs import cp_ranks_per_node
from autoplan.search.pipeline.configs import Config
from autoplan.search.pipeline.stored import found_of
from autoplan.search.planner import plan_job
from autoplan.search.pricing import Pricing
from autoplan.search.what_if import explain_plan
from autoplan.sharding.context import context_graph
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from cost_models.collectives import CollectiveKind, collective_s
from tests.unit.search_graphs import gated_mlp, job, small_cluster
from tests.unit.trace_models import llama

CLUSTER = small_cluster(gpus_per_node=2)
LAYERS, HEADS, KV_HEADS, HEAD_DIM, TOKENS, SAMPLES = 2, 4, 2, 8, 16, 2
FLOAT = 4


@cache
def decoder() -> OpGraph:
    ids = torch.randint(0, 61, (SAMPLES, TOKENS))
    return capture(llama(LAYERS), {"input_ids": ids, "labels": ids})


def planned(graph: OpGraph, **asked: int | str) -> Plan:
    return plan_job(graph, replace(job(**asked), planned_only=True), CLUSTER)


def test_a_rank_has_a_share_of_the_work_and_whole_keys_and_values() -> None:
    """Whole is also what each makes of the inputs alone: tables of angles, labels."""
    whole, part = decoder(), context_graph(decoder(), 4)
    for node in whole.of_kind("call"):
        own = part.by_name[node.name]
        assert (own.flops, own.backward_flops) == (node.flops // 4, node.backward_flops // 4)
        attends = node.name.endswith("scaled_dot_product_attention")
        for before, after in zip(node.saved, own.saved, strict=True):
            gathered = attends and before.operand in (1, 2)
            given = before.source is not None and not whole.meta(before.source).requires_grad
            assert after.nbytes == before.nbytes // (1 if gathered or given else 4), node.name
    keys_bytes = SAMPLES * KV_HEADS * TOKENS * HEAD_DIM * FLOAT
    read = [n for n in part.of_kind("call") if n.name.endswith(("gathered1", "gathered2"))]
    assert [node.outputs[0].nbytes for node in read] == [keys_bytes] * 2 * LAYERS


def test_messages_of_a_plan_are_those_of_all_keys_and_values() -> None:
    plan = planned(
        decoder(), nodes=2, gpus=2, batch=8, cp=2, dp=2, tp=1, microbatch=2, recompute="none"
    )
    assert (plan.mesh.cp, plan.num_microbatches) == (2, 2)
    keys_bytes = 2 * KV_HEADS * TOKENS * HEAD_DIM * FLOAT
    kinds: tuple[CollectiveKind, ...] = ("all_gather", "reduce_scatter")
    for kind in kinds:
        name, times = f"{kind} cp", 2 * LAYERS * 2
        assert plan.estimate.comm_counts[name] == times
        assert plan.estimate.comm_bytes[name] == times * keys_bytes
        each_s = collective_s(kind, keys_bytes, 2, 2, CLUSTER)
        assert plan.estimate.comm_s[name] == pytest.approx(times * each_s)
    assert plan.estimate.exposed_by_axis_s["cp"] == pytest.approx(
        plan.estimate.comm_s["all_gather cp"] + plan.estimate.comm_s["reduce_scatter cp"]
    )
    assert plan.estimate.exposed_by_axis_s["tp"] == 0


def test_a_plan_is_priced_again_as_it_was_and_is_refused_to_run() -> None:
    plan = from_json(to_json(planned(decoder(), nodes=2, gpus=2, batch=8, cp=2, tp=2)))
    again = found_of(Pricing(decoder(), plan.job, CLUSTER), plan)
    assert again.step_s == pytest.approx(plan.estimate.step_s, rel=1e-12)
    assert "cp = 2" in (obstacle(decoder(), plan) or "")


def test_a_plan_is_told_why_it_has_no_cp() -> None:
    graph = gated_mlp(2)
    plan = plan_job(graph, job(nodes=2, gpus=2, batch=8), CLUSTER)
    asked = Question(pins=Pins(cp=2))
    answer = explain_plan(graph, plan, CLUSTER, asked, lambda done, what: None).why_not
    assert answer is not None
    assert answer.plan is not None
    assert answer.plan.mesh.cp == 2
    assert answer.verdict in ("as fast", "slower")


def test_exports_refuse_what_they_do_not_write() -> None:
    plan = planned(gated_mlp(2), nodes=2, gpus=2, batch=8, cp=2)
    with pytest.raises(PlanError, match="--to megatron: cp=2 splits tokens"):
        export(plan, "megatron")


@pytest.mark.parametrize("pins", [{"tp": 2}, {"pp": 2, "tp": 1}])
def test_tokens_that_never_meet_are_like_more_samples_of_fewer(pins: dict[str, int]) -> None:
    """Weights meet the same tokens on as many ranks, whoever's they are."""
    tokens = planned(gated_mlp(4, tokens=32), nodes=4, gpus=2, batch=8, cp=2, **pins)
    samples = planned(gated_mlp(4, tokens=16), nodes=4, gpus=2, batch=16, cp=1, **pins)
    assert tokens.mesh.dp * 2 == samples.mesh.dp
    assert tokens.estimate.step_s == pytest.approx(samples.estimate.step_s, rel=1e-9)
    assert tokens.search.lower_bound_s == pytest.approx(samples.search.lower_bound_s, rel=1e-9)


def test_all_degrees_are_planned_where_none_is_pinned() -> None:
    """A search over all of them is as good as the best of one each."""
    graph = gated_mlp(2, tokens=4096)
    free = planned(graph, nodes=2, gpus=2, batch=1)
    each = [planned(graph, nodes=2, gpus=2, batch=1, cp=cp) for cp in (1, 2, 4)]
    assert free.estimate.step_s == pytest.approx(min(p.estimate.step_s for p in each), rel=1e-3)
    assert free.search.lower_bound_s <= min(p.estimate.step_s for p in each)
    assert free.mesh.cp > 1


class Mixer(nn.Module):
    """Something over tokens between an embedding and a head."""

    def __init__(self, mixes: nn.Module) -> None:
        super().__init__()
        self.tokens, self.mixes = nn.Embedding(61, 8), mixes
        self.head = nn.Linear(8, 61)

    def forward(self, ids: Tensor) -> Tensor:
        mixed = self.mixes(self.tokens(ids))
        return self.head(mixed[0] if isinstance(mixed, tuple) else mixed)


class Causal(nn.Module):
    """A convolution over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.taps = nn.Conv1d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.taps(x.transpose(1, 2)).transpose(1, 2)


class Shifted(nn.Module):
    """What is made of every token's neighbour goes to this token and to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x.roll(1, 1))
        return y + y.roll(1, 1)


@pytest.mark.parametrize(
    ("mixes", "named"),
    [
        (nn.LSTM(8, 8, batch_first=True), r"cp=2 cannot split mixes/lstm: aten.lstm.input needs"),
        (Shifted(), r"cp=2 would leave 12% of the work to every rank, as mixes/roll needs all"),
        (Causal(), r"cp=2 cannot split mixes.taps/conv1d: .* needs all tokens, .*\.py:\d+; use"),
    ],
)
def test_work_on_all_tokens_is_refused_with_its_place(mixes: nn.Module, named: str) -> None:
    ids = torch.randint(0, 61, (2, 12))

    def loss(scores: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())

    graph = capture(Mixer(mixes), (ids, ids), loss_fn=loss)
    with pytest.raises(PlanError, match=named):
        context_graph(graph, 2)


def test_tokens_that_do_not_divide_are_refused() -> None:
    with pytest.raises(PlanError, match="cp=3 does not divide the 16 tokens of input_ids"):
        context_graph(decoder(), 3)


@pytest.mark.parametrize("outermost", ["pp", "dp"])
def test_neighbours_are_counted_as_ranks_lie(outermost: str) -> None:
    """``tp`` ranks are neighbours, then ``cp``, then the inner one of ``pp`` and ``dp``."""
    sizes = itertools.product((1, 2, 4), (1, 2, 4), (1, 2, 4), (1, 2))
    for (pp, dp, cp, tp), gpus_per_node in itertools.product(sizes, (2, 4, 8)):
        config = Config(
            pp=pp, dp=dp, cp=cp, tp=tp, zero=0, replicas=1, microbatch=1, num_microbatches=4,
            schedule="1f1b" if pp > 1 else None, stages_per_rank=1,
            outermost="dp" if outermost == "dp" else "pp",
        )  # fmt: skip
        outer, inner = (dp, pp) if outermost == "dp" else (pp, dp)
        groups: dict[tuple[int, int], dict[int, int]] = {}
        places = itertools.product(range(outer), range(inner), range(cp), range(tp))
        for rank, (first, second, _, at) in enumerate(places):
            stage = second if outermost == "dp" else first
            nodes = groups.setdefault((stage, at), {})
            nodes[rank // gpus_per_node] = nodes.get(rank // gpus_per_node, 0) + 1
        worst = min(min(nodes.values()) for nodes in groups.values())
        assert config.state_ranks_per_node(gpus_per_node) == worst, config


@pytest.mark.parametrize("gpus_per_node", [2, 4, 8])
def test_ranks_of_cp_alone_are_counted_as_they_lie(gpus_per_node: int) -> None:
    for cp, tp in itertools.product((1, 2, 3, 4, 6, 8), (1, 2, 4, 8)):
        groups: dict[tuple[int, int], dict[int, int]] = {}
        for rank in range(cp * tp * gpus_per_node):
            nodes = groups.setdefault((rank // (cp * tp), rank % tp), {})
            nodes[rank // gpus_per_node] = nodes.get(rank // gpus_per_node, 0) + 1
        worst = min(min(nodes.values()) for nodes in groups.values())
        assert cp_ranks_per_node(cp, tp, gpus_per_node) == worst, (cp, tp)
