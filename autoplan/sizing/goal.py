"""What a training is to reach, and what that asks of devices whatever the plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.job import Job
from autoplan.trace.graph import OpGraph
from cost_models.peaks import peak_flops_per_s
from hardware_profiles.spec import ClusterSpec

DAY_S = 86400.0
_PEAK_DTYPE = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_ATTENTION = "scaled_dot_product_attention"


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """So many tokens in so many days."""

    tokens: float
    days: float

    def steps(self, job: Job) -> int:
        """Optimizer steps until all tokens were seen."""
        return math.ceil(self.tokens / (job.global_batch * (job.model.seq_len or 1)))

    def days_of(self, job: Job, step_s: float) -> float:
        """Days until then, by the seconds of a step."""
        return self.steps(job) * step_s / DAY_S


def node_counts(most: int) -> tuple[int, ...]:
    """Numbers of nodes worth a plan: powers of two, three times such, and all there are.

    Others leave meshes that divide few batches; each is at most half as many again as the last.
    """
    powers = [1 << exponent for exponent in range(most.bit_length())]
    counts = {*powers, *(3 * power for power in powers), most}
    return tuple(sorted(count for count in counts if count <= most))


def at_least(counts: Sequence[int], wanted: float) -> int:
    """The place of the first count that is not below ``wanted``; their number if there is none."""
    return next((n for n, count in enumerate(counts) if count >= wanted), len(counts))


def least_nodes(graph: OpGraph, job: Job, cluster: ClusterSpec, goal: Goal) -> float:
    """Nodes below which not even the peak rate of all devices would do, memory and messages aside.

    Operations are those of ``trace.flops``; of attention half, since a causal mask spares as many.
    """
    tokens = graph.batch * (job.model.seq_len or 1)
    flops = sum(
        (node.flops + node.backward_flops) * (0.5 if _ATTENTION in (node.target or "") else 1.0)
        for node in graph.nodes
    )
    node_flops_per_s = job.gpus_per_node * peak_flops_per_s(
        _PEAK_DTYPE[job.precision], cluster.device
    )
    return flops * goal.tokens / tokens / (node_flops_per_s * goal.days * DAY_S)
