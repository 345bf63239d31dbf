"""Predicted seconds of one training step of a setup.

Layers are priced kernel by kernel and message by message, chunks of layers go through the
schedule's simulation, gradients are exchanged as the framework does it, and the optimizer follows.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.validation.ranks.learned_weights import frozen_layers
from autoplan.validation.ranks.stages import Chunk, chunks, held_chunks, weights_of
from autoplan.validation.setups.setup import Setup
from autoplan.validation.step.blocks import attention_block, feed_forward_block
from autoplan.validation.step.clock import Clock, Spent
from autoplan.validation.step.data_parallel import Beside, Exchange, exchange
from autoplan.validation.step.ends import embedding, head
from autoplan.validation.step.optimizer_step import optimizer_s
from autoplan.validation.step.passes import Part
from autoplan.validation.step.recompute import with_recompute
from cost_models.jitter import slowest_of
from cost_models.pipeline import StageTimes, simulate
from hardware_profiles.load import load
from hardware_profiles.spec import ClusterSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """``step_s = compute_s + exposed_comm_s + bubble_s + optimizer_s`` on the slowest rank.

    ``bubble_s`` is what it waits for: other stages, and the slowest device of all.
    """

    step_s: float
    compute_s: float
    exposed_comm_s: float
    bubble_s: float
    optimizer_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Costs:
    """Seconds of one chunk for one microbatch."""

    forward: Spent
    backward: Spent
    weights: Spent
    exchange: Exchange


def step_of(setup: Setup, cluster: ClusterSpec | None = None) -> StepTime:
    """Seconds of one step.

    Args:
        setup: the run.
        cluster: profile to use instead of the one the setup names.
    """
    clock = Clock(setup, cluster or load(setup.cluster))
    if setup.layer_only:
        return _layer_alone(clock)
    layer = _passes(clock, _layer(setup))
    model = chunks(setup)
    known = {chunk: _chunk_costs(clock, chunk, layer) for chunk in set(model)}
    costs = [known[chunk] for chunk in model]
    held = held_chunks(setup, model)
    by_rank = [[known[chunk] for chunk in each] for each in held]
    pipeline = simulate(
        setup.schedule,
        _stage_times(costs, clock.stage_send_s() if setup.pp > 1 else 0.0),
        setup.microbatches,
        setup.pp,
        blocking_sends=not setup.framework.overlaps_sends,
    )
    once_s = [sum(each.exchange.once_s for each in costs) for costs in by_rank]
    ends_s = [end + once for end, once in zip(pipeline.rank_end_s, once_s, strict=True)]
    slowest = max(range(setup.pp), key=ends_s.__getitem__)
    updated_s = max(optimizer_s(clock, each) for each in set(held))
    compute_s = setup.microbatches * sum(_compute_s(each) for each in by_rank[slowest])
    exposed_s = setup.microbatches * sum(_exposed_s(each) for each in by_rank[slowest])
    own_s = ends_s[slowest] + updated_s
    waits_s = own_s * (slowest_of(setup.gpus, clock.cluster.step_jitter) - 1)
    return StepTime(
        step_s=own_s + waits_s,
        compute_s=compute_s,
        exposed_comm_s=exposed_s + once_s[slowest],
        bubble_s=max(0.0, pipeline.rank_end_s[slowest] - compute_s - exposed_s) + waits_s,
        optimizer_s=updated_s,
    )


def _layer(setup: Setup) -> Part:
    return with_recompute(setup, attention_block(setup) + feed_forward_block(setup))


def _layer_alone(clock: Clock) -> StepTime:
    layer = _layer(clock.setup)
    spent = _passes(clock, layer)
    total = spent[0] if clock.setup.forward_only else spent[0] + spent[1] + spent[2]
    return StepTime(
        step_s=total.total_s,
        compute_s=total.compute_s,
        exposed_comm_s=total.exposed_comm_s,
        bubble_s=0.0,
        optimizer_s=0.0,
    )


def _passes(clock: Clock, part: Part) -> tuple[Spent, Spent, Spent]:
    """Forward, backward (with what is recomputed) and weights' gradients."""
    weights = clock.spent(part.weights)
    backward = clock.spent(part.again) + clock.spent(part.inputs, beside_s=weights.compute_s)
    return clock.spent(part.forward), backward, weights


def _chunk_costs(clock: Clock, chunk: Chunk, layer: tuple[Spent, Spent, Spent]) -> _Costs:
    setup = clock.setup
    empty = Part()
    ends = (embedding(setup) if chunk.embedding else empty) + (head(setup) if chunk.head else empty)
    backwards = max(0, chunk.layers - frozen_layers(setup) * chunk.embedding)
    forward, backward, weights = (
        one.times(count) + end
        for one, end, count in zip(
            layer, _passes(clock, ends), (chunk.layers, backwards, backwards), strict=True
        )
    )
    beside = Beside(
        layer_forward_s=layer[0].compute_s,
        layer_backward_s=layer[1].compute_s + layer[2].compute_s,
        forward_s=forward.compute_s,
        backward_s=backward.compute_s + weights.compute_s,
    )
    return _Costs(
        forward=forward,
        backward=backward,
        weights=weights,
        exchange=exchange(clock, chunk, weights_of(setup, chunk), beside),
    )


def _stage_times(costs: list[_Costs], send_s: float) -> list[StageTimes]:
    return [
        StageTimes(
            forward_s=chunk.forward.total_s + chunk.exchange.forward_s,
            backward_input_s=chunk.backward.total_s + chunk.exchange.backward_s,
            backward_weight_s=chunk.weights.total_s,
            send_forward_s=send_s,
            send_backward_s=send_s,
        )
        for chunk in costs
    ]


def _compute_s(costs: _Costs) -> float:
    return costs.forward.compute_s + costs.backward.compute_s + costs.weights.compute_s


def _exposed_s(costs: _Costs) -> float:
    passes = (costs.forward, costs.backward, costs.weights)
    messages_s = sum(each.exposed_comm_s for each in passes)
    return messages_s + costs.exchange.forward_s + costs.exchange.backward_s
