"""What a whole plan is predicted to cost, in the terms of a plan file."""

from __future__ import annotations

from collections import defaultdict

from autoplan.plan import Estimate, StageEstimate
from autoplan.search.pipeline.solve import Found
from autoplan.search.pricing import Pricing
from cost_models.peaks import peak_flops_per_s
from cost_models.schedule_memory import held_microbatches

# What is left of a step after all its parts by rounding of sums, as a share of it.
_ROUNDING = 1e-12
_PEAK_DTYPE = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def estimate_of(pricing: Pricing, found: Found) -> Estimate:
    """Predictions for a plan.

    The parts of the step are those of the rank that is busy for longest; what it waits for others,
    at its own first and last action included, is the bubble.
    """
    job, value = pricing.job, found.value
    stages = _ranks(pricing, found)
    parts = busiest_parts(found)
    samples_per_s = job.global_batch / value.step_s
    seq_len = job.model.seq_len
    return Estimate(
        step_s=value.step_s,
        compute_s=parts.compute_s,
        exposed_comm_s=parts.exposed_comm_s,
        bubble_s=parts.bubble_s,
        optimizer_s=parts.optimizer_s,
        comm_s=parts.messages_s(),
        tokens_per_s=samples_per_s * seq_len if seq_len else None,
        samples_per_s=samples_per_s,
        mfu=_model_flops(pricing) / (value.step_s * _peak_flops_per_s(pricing)),
        peak_memory_bytes=max(memory.total for memory in value.memory),
        memory_limit_bytes=pricing.limit_bytes,
        stages=stages,
    )


def _model_flops(pricing: Pricing) -> float:
    """Forward and backward operations of one step, without recomputation."""
    graph = pricing.graph
    flops = sum(node.flops + node.backward_flops for node in graph.nodes)
    return flops * pricing.job.global_batch / graph.batch


def _peak_flops_per_s(pricing: Pricing) -> float:
    """What all devices of the job could do at most."""
    job = pricing.job
    return job.world_size * peak_flops_per_s(_PEAK_DTYPE[job.precision], pricing.cluster.device)


def busiest_parts(found: Found) -> RankParts:
    """Where the step of the rank goes that is busy for longest."""
    busy_s = found.value.times.busy_s
    return RankParts(found, max(range(found.config.pp), key=lambda rank: busy_s[rank]))


def _ranks(pricing: Pricing, found: Found) -> tuple[StageEstimate, ...]:
    config, value = found.config, found.value
    held = held_microbatches(config.shape, until_weight=True).max(axis=0)
    estimates = []
    for rank in range(config.pp):
        own = _stages_of(found, rank)
        parts = RankParts(found, rank)
        estimates.append(
            StageEstimate(
                devices=pricing.job.world_size // config.pp,
                compute_s=parts.compute_s,
                memory=value.memory[rank],
                forward_s=sum(value.seconds[stage].forward_s for stage in own),
                backward_s=sum(
                    value.seconds[stage].backward_input_s + value.seconds[stage].backward_weight_s
                    for stage in own
                ),
                bubble_s=parts.bubble_s,
                held_microbatches=int(max(held[stage] for stage in own)),
            )
        )
    return tuple(estimates)


def _stages_of(found: Found, rank: int) -> list[int]:
    shape = found.config.shape
    return [stage for stage in range(shape.stages) if shape.rank_of(stage) == rank]


class RankParts:
    """Where one rank's step goes; the parts add up to the step."""

    def __init__(self, found: Found, rank: int) -> None:
        value, count = found.value, found.config.num_microbatches
        self._found = found
        self._stages = _stages_of(found, rank)
        self.step_s = value.step_s
        loads = [value.loads[stage] for stage in self._stages]
        seconds = [value.seconds[stage] for stage in self._stages]
        self.compute_s = count * sum(
            load.forward_window_s + load.backward_window_s for load in loads
        )
        self.optimizer_s = sum(each.optimizer_s for each in seconds)
        over_tp_s = sum(load.forward_s + load.backward_s for load in loads)
        self.exposed_comm_s = count * over_tp_s - self.compute_s
        if found.config.pp == 1:
            self.exposed_comm_s += sum(each.exposed_s for each in seconds)
        else:
            self.exposed_comm_s += value.head_s + max(each.tail_s for each in seconds)
        self.exposed_comm_s += value.times.exposed_send_s[rank]
        known_s = self.compute_s + self.optimizer_s + self.exposed_comm_s
        waited_s = value.step_s - known_s
        self.bubble_s = waited_s if waited_s > _ROUNDING * value.step_s else 0.0

    def messages_s(self) -> dict[str, float]:
        """Seconds of all messages in a step, hidden ones included, by collective and axis."""
        found, counted = self._found, defaultdict[str, float](float)
        for stage in self._stages:
            for kind, seconds in found.value.seconds[stage].messages_s.items():
                counted[f"{kind} dp"] += seconds
            for column, key in found.columns(stage):
                for kind, seconds in found.family.menus.messages_s(key, column).items():
                    counted[f"{kind} tp"] += found.config.num_microbatches * seconds
        counted["send_recv pp"] = self._sends_s()
        return {name: seconds for name, seconds in sorted(counted.items()) if seconds > 0}

    def _sends_s(self) -> float:
        """Messages that the rank sends to its neighbours in one step."""
        value, count = self._found.value, self._found.config.num_microbatches
        return count * sum(
            value.sent[stage].send_forward_s + value.sent[stage].send_backward_s
            for stage in self._stages
        )
