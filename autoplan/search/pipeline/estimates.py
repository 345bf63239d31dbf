"""What a whole plan is predicted to cost, in the terms of a plan file."""

from __future__ import annotations

import math

from autoplan.plan import Estimate, StageEstimate, StageTiming
from autoplan.search.pipeline.module_memory import module_memory
from autoplan.search.pipeline.sent import over_cp, sent_by
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
    parts = busiest_parts(found)
    sent = sent_by(found, parts.stages)
    samples_per_s = job.global_batch / value.step_s
    seq_len = job.model.seq_len
    return Estimate(
        step_s=value.step_s,
        compute_s=parts.compute_s,
        exposed_comm_s=parts.exposed_comm_s,
        bubble_s=parts.bubble_s,
        optimizer_s=parts.optimizer_s,
        comm_s={name: each.seconds for name, each in sent.items()},
        tokens_per_s=samples_per_s * seq_len if seq_len else None,
        samples_per_s=samples_per_s,
        mfu=_model_flops(pricing) / (value.step_s * _peak_flops_per_s(pricing)),
        peak_memory_bytes=max(memory.total for memory in value.memory),
        memory_limit_bytes=pricing.limit_bytes,
        stages=_ranks(pricing, found),
        comm_bytes={name: math.ceil(each.nbytes) for name, each in sent.items()},
        comm_counts={name: each.count for name, each in sent.items()},
        exposed_by_axis_s=parts.exposed_by_axis_s,
        head_s=value.head_s,
        timings=_timings(found),
        modules=module_memory(found),
    )


def _timings(found: Found) -> tuple[StageTiming, ...]:
    value = found.value
    return tuple(
        StageTiming(
            times=times,
            forward_messages_s=seconds.forward_s - load.forward_window_s,
            backward_messages_s=seconds.backward_input_s
            + seconds.backward_weight_s
            - load.backward_window_s,
            tail_s=seconds.tail_s,
            optimizer_s=seconds.optimizer_s,
            kept_bytes=int(load.kept_bytes),
        )
        for load, seconds, times in zip(value.loads, value.seconds, value.sent, strict=True)
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
        self.stages = _stages_of(found, rank)
        self.step_s = value.step_s
        loads = [value.loads[stage] for stage in self.stages]
        seconds = [value.seconds[stage] for stage in self.stages]
        self.compute_s = count * sum(
            load.forward_window_s + load.backward_window_s for load in loads
        )
        self.optimizer_s = sum(each.optimizer_s for each in seconds)
        with_messages_s = count * sum(load.forward_s + load.backward_s for load in loads)
        over_dp_s = value.head_s + max(each.tail_s for each in seconds)
        if found.config.pp == 1:
            over_dp_s = sum(each.exposed_s for each in seconds)
        over_cp_s = sum(sent.seconds for stage in self.stages for _, sent in over_cp(found, stage))
        over_tp_s = with_messages_s - self.compute_s - over_cp_s
        self.exposed_by_axis_s = {
            "dp": over_dp_s,
            "pp": value.times.exposed_send_s[rank],
            "tp": over_tp_s if over_tp_s > _ROUNDING * value.step_s else 0.0,
        }
        if found.config.cp > 1:
            self.exposed_by_axis_s["cp"] = over_cp_s
        self.exposed_comm_s = sum(self.exposed_by_axis_s.values())
        known_s = self.compute_s + self.optimizer_s + self.exposed_comm_s
        waited_s = value.step_s - known_s
        self.bubble_s = waited_s if waited_s > _ROUNDING * value.step_s else 0.0
