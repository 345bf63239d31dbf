"""Seconds of the messages that weights and gradients need, for one configuration.

Weights are gathered, and gradients reduced, unit by unit (``loads.Unit``): over the ranks of ``dp``
and ``cp`` that share the states, and with hybrid sharding once more between the replicas of each
shard. ZeRO 0 sums gradients in buckets, whose bytes take as long as those of the largest. What the
host takes around a unit's message counts, where it shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from autoplan.capabilities import bucket_bytes
from autoplan.search.pipeline.configs import Config
from autoplan.search.pipeline.loads import Load, Unit
from cost_models.collectives import CollectiveKind, collective_s
from cost_models.host_work import gather_host_s, reduce_host_s
from cost_models.memory import COMPUTE_BYTES, STORED_BYTES
from hardware_profiles.spec import ClusterSpec


@dataclass(frozen=True, slots=True)
class WeightMessages:
    """Prices of one configuration's messages of weights; remembers what it has priced."""

    config: Config
    precision: str
    gpus_per_node: int
    cluster: ClusterSpec
    known: dict[tuple[CollectiveKind, float, int], float] = field(default_factory=dict)

    def gather_s(self, unit: Unit) -> float:
        """Weights of one unit, in the precision of compute."""
        nbytes = (unit.trained_elements + unit.frozen_elements) * COMPUTE_BYTES[self.precision]
        return self._shared("all_gather", nbytes) + gather_host_s(nbytes, self.cluster.device)

    def reduce_s(self, unit: Unit) -> float:
        """Gradients of one unit, in fp32, to the ranks that store them, of all replicas."""
        return self.scatter_s(unit) + self.replicas_s(unit)

    def scatter_s(self, unit: Unit) -> float:
        """Gradients of one unit to the ranks of a replica that store them."""
        nbytes = unit.trained_elements * STORED_BYTES
        return self._shared("reduce_scatter", nbytes) + reduce_host_s(nbytes, self.cluster.device)

    def replicas_s(self, unit: Unit) -> float:
        """The shard of one unit's gradients, summed over the replicas."""
        if self.config.replicas == 1:
            return 0.0
        nbytes = unit.trained_elements * STORED_BYTES / self.config.shards
        return self._sent("all_reduce", nbytes, self.config.replicas)

    def sum_s(self, load: Load) -> float:
        """All gradients of a stage, in fp32, summed over ``dp`` and ``cp`` in buckets."""
        return _trained(load) * self.sum_per_element_s

    def beside_s(self, load: Load) -> float:
        """Of these sums, those that can start before a backward ends: all buckets but the last."""
        elements = _trained(load)
        return elements * (1 - last_bucket_share(elements)) * self.sum_per_element_s

    @property
    def sum_per_element_s(self) -> float:
        """Seconds that one element adds to the sum of gradients."""
        largest_bytes = bucket_bytes(math.inf)
        bucket_s = self._sent("all_reduce", largest_bytes, self.config.state_ranks)
        return bucket_s / largest_bytes * STORED_BYTES

    def _shared(self, kind: CollectiveKind, nbytes: float) -> float:
        return self._sent(kind, nbytes, self.config.shards)

    def _sent(self, kind: CollectiveKind, nbytes: float, ranks: int) -> float:
        if not nbytes:
            return 0.0
        key = kind, nbytes, ranks
        if key not in self.known:
            near = self.config.state_ranks_per_node(self.gpus_per_node)
            if kind == "all_reduce" and ranks == self.config.replicas and self.config.replicas > 1:
                near = max(1, near // self.config.shards)
            self.known[key] = collective_s(kind, nbytes, ranks, min(near, ranks), self.cluster)
        return self.known[key]


def last_bucket_share(elements: float) -> float:
    """The share of the last bucket in the gradients of so many elements; less of more elements."""
    nbytes = elements * STORED_BYTES
    return min(1.0, bucket_bytes(nbytes) / nbytes) if nbytes else 1.0


def _trained(load: Load) -> float:
    return sum(unit.count * unit.trained_elements for unit in load.units)
