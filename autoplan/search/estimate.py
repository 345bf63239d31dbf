"""What a plan is predicted to cost, recomputed in full from its choices.

Nothing is taken from the solver: operators, conversions and messages are priced one by one, the
messages of each unit at their exact size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autoplan.plan import Estimate, StageEstimate
from autoplan.search.candidate_costs import CandidateCosts, Recomputed
from autoplan.search.folded_graph import ROOT
from autoplan.search.found import Found
from autoplan.search.memory import memory_of_plan
from autoplan.search.pricing import Pricing
from autoplan.search.weight_costs import dp_collective_s
from cost_models.collectives import CollectiveKind
from cost_models.memory import COMPUTE_BYTES, STORED_BYTES
from cost_models.overlap import exposed_s
from cost_models.peaks import peak_flops_per_s

_PEAK_DTYPE = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def estimate_of(pricing: Pricing, found: Found) -> Estimate:
    """Predictions for a plan found by the search."""
    job = pricing.job
    times = step_times(pricing, found)
    memory = memory_of_plan(pricing, found)
    samples_per_s = job.global_batch / times.step_s
    seq_len = job.model.seq_len
    return Estimate(
        step_s=times.step_s,
        compute_s=times.compute_s,
        exposed_comm_s=times.exposed_comm_s,
        bubble_s=0.0,
        optimizer_s=times.optimizer_s,
        comm_s={name: s for name, s in sorted(times.comm_s.items()) if s > 0},
        tokens_per_s=samples_per_s * seq_len if seq_len else None,
        samples_per_s=samples_per_s,
        mfu=model_flops(pricing) / (times.step_s * peak_flops_per_s_of(pricing)),
        peak_memory_bytes=memory.total,
        memory_limit_bytes=pricing.limit_bytes,
        stages=(StageEstimate(devices=job.world_size, compute_s=times.compute_s, memory=memory),),
    )


def model_flops(pricing: Pricing) -> float:
    """Forward and backward operations of one step, without recomputation."""
    graph = pricing.graph
    flops = sum(node.flops + node.backward_flops for node in graph.nodes)
    return flops * pricing.job.global_batch / graph.batch


def peak_flops_per_s_of(pricing: Pricing) -> float:
    """What all devices of the job could do at most."""
    job = pricing.job
    return job.world_size * peak_flops_per_s(_PEAK_DTYPE[job.precision], pricing.cluster.device)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """Seconds of one step; ``comm_s`` by collective and axis, hidden or not."""

    compute_s: float
    exposed_comm_s: float
    optimizer_s: float
    comm_s: dict[str, float]
    bubble_s: float = 0.0

    @property
    def step_s(self) -> float:
        return self.compute_s + self.exposed_comm_s + self.optimizer_s


def step_times(pricing: Pricing, found: Found) -> StepTimes:
    """Seconds of one step of a plan."""
    costs, choices = pricing.costs(found.candidate), found.choices
    adder = _Adder(pricing, costs, found.recomputed, choices)
    adder.operators()
    adder.conversions()
    adder.messages()
    optimizer_s = sum(
        costs.folded.copies(costs.region(number)) * row[choices[number]]
        for number, row in costs.weights.optimizer_s.items()
    )
    return StepTimes(
        compute_s=adder.forward_s + adder.backward_s,
        exposed_comm_s=adder.exposed_s,
        optimizer_s=optimizer_s,
        comm_s=dict(adder.comm_s),
    )


class _Adder:
    """Sums the seconds of a step."""

    def __init__(
        self,
        pricing: Pricing,
        costs: CandidateCosts,
        recomputed: Recomputed,
        choices: Sequence[int],
    ) -> None:
        self.pricing = pricing
        self.costs = costs
        self.recomputed = recomputed
        self.choices = choices
        self.count = costs.candidate.num_microbatches
        self.forward_s = 0.0
        self.backward_s = 0.0
        self.exposed_s = 0.0
        self.comm_s: dict[str, float] = defaultdict(float)

    def operators(self) -> None:
        """Compute; a recomputed forward runs within the backward."""
        for number, options in enumerate(self.costs.microbatch.operators):
            cost = options[self.choices[number]]
            region = self.costs.region(number)
            copies, again = self.costs.folded.copies(region), self.recomputed.get(region, 0)
            self.forward_s += self.count * copies * cost.forward_s
            self.backward_s += self.count * (copies * cost.backward_s + again * cost.forward_s)

    def conversions(self) -> None:
        """Messages over ``tp``, each once for all readers that share it; all exposed."""
        space = self.costs.microbatch.space
        for link, table in zip(space.links, self.costs.microbatch.conversions, strict=True):
            copies = link.tensor.copies
            forward = self.count * (copies + self.recomputed.get(link.tensor.region, 0))
            q = link.classes[self.choices[link.producer]]
            for p in sorted({ports[self.choices[node]] for node, ports in link.readers}):
                cost = table[q][p]
                for sent, seconds, runs in (
                    (cost.forward, cost.forward_s, forward),
                    (cost.backward, cost.backward_s, self.count * copies),
                ):
                    for kind, _ in sent:
                        self.comm_s[f"{kind} tp"] += runs * seconds / len(sent)
                    self.exposed_s += runs * seconds

    def messages(self) -> None:
        """Messages over ``dp``: those of blocks beside compute, the root's and stage 0's not."""
        weights, stage = self.costs.weights, self.costs.weights.stage
        for number, row in weights.all_reduce_s.items():
            self._expose("all_reduce", row[self.choices[number]])
        if not stage.shards_states:
            return
        count = self.count
        again = count * (stage.gathers_per_microbatch // 2)
        under_forward = stage.gathers_per_step + again
        reductions = stage.reductions_per_step + count * stage.reductions_per_microbatch
        gather, reduce = self._unit_s("all_gather"), self._unit_s("reduce_scatter")
        if ROOT in gather:
            self._expose("all_gather", (under_forward + again) * gather.pop(ROOT))
        if ROOT in reduce:
            self._expose("reduce_scatter", reductions * reduce.pop(ROOT))
        one_gather, one_reduce = self._all_units(gather), self._all_units(reduce)
        self.comm_s["all_gather dp"] += (under_forward + again) * one_gather
        self.comm_s["reduce_scatter dp"] += reductions * one_reduce
        forward_s, backward_s = self.forward_s, self.backward_s
        if stage.gathers_per_step:
            forward_s /= count
        if stage.reductions_per_step:
            backward_s /= count
        self._hide(under_forward * one_gather, forward_s)
        self._hide(again * one_gather + reductions * one_reduce, backward_s)

    def _expose(self, kind: str, seconds: float) -> None:
        self.comm_s[f"{kind} dp"] += seconds
        self.exposed_s += seconds

    def _hide(self, messages_s: float, compute_s: float) -> None:
        self.exposed_s += exposed_s(messages_s, compute_s, self.costs.overlap_efficiency)

    def _all_units(self, by_region: dict[str, float]) -> float:
        return sum(self.costs.folded.copies(region) * s for region, s in by_region.items())

    def _unit_s(self, kind: CollectiveKind) -> dict[str, float]:
        """Seconds of one unit's message of a kind, by region."""
        nbytes: dict[str, float] = {}
        for number, elements in self._sent(kind):
            region = self.costs.region(number)
            nbytes[region] = nbytes.get(region, 0.0) + elements
        element_bytes = STORED_BYTES
        if kind == "all_gather":
            element_bytes = COMPUTE_BYTES[self.pricing.job.precision]
        return {
            region: dp_collective_s(
                kind, elements * element_bytes, self.costs.candidate,
                self.pricing.training, self.pricing.cluster,
            )
            for region, elements in nbytes.items()
        }  # fmt: skip

    def _sent(self, kind: str) -> Iterator[tuple[int, float]]:
        for number, elements in self.costs.weights.elements.items():
            if kind == "all_gather" or self.costs.weights.trainable[number]:
                yield number, elements[self.choices[number]]
