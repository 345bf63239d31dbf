"""Seconds of passes on a cluster: kernels one after another, messages beside or between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autoplan.validation.ranks.held_states import shards_of
from autoplan.validation.setups.setup import Setup
from autoplan.validation.step.passes import Axis, Message, Pass
from cost_models.collectives import CollectiveKind, collective_s
from cost_models.compute import kernel_s
from cost_models.overlap import tensor_parallel_s
from cost_models.work import Streaming, Work
from hardware_profiles.spec import ClusterSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """Seconds of one pass: what the device computes, and the messages that show."""

    compute_s: float = 0.0
    exposed_comm_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.compute_s + self.exposed_comm_s

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            compute_s=self.compute_s + other.compute_s,
            exposed_comm_s=self.exposed_comm_s + other.exposed_comm_s,
        )

    def times(self, count: float) -> Spent:
        return Spent(compute_s=count * self.compute_s, exposed_comm_s=count * self.exposed_comm_s)


@dataclass(frozen=True, slots=True)
class Clock:
    """Prices kernels and messages of one setup."""

    setup: Setup
    cluster: ClusterSpec

    def kernels_s(self, kernels: Iterable[Work]) -> float:
        """Seconds of kernels one after another on the device."""
        return sum(kernel_s(kernel, self.cluster.device) for kernel in kernels)

    def spent(self, work: Pass, beside_s: float | None = None) -> Spent:
        """One pass; messages that may run beside kernels hide under ``beside_s`` of them.

        The host starts kernels and messages while the device works: the slower of the two sets the
        pace, and what the device waits for the host counts as compute.

        Args:
            work: kernels and messages.
            beside_s: seconds of other kernels to hide under; None: the pass's own.
        """
        compute_s = self.kernels_s(work.kernels)
        shown_s = tensor_parallel_s(
            sum(self.message_s(each) for each in work.messages if not each.beside),
            sum(self.message_s(each) for each in work.messages if each.beside),
            compute_s if beside_s is None else beside_s,
            self.cluster.overlap_efficiency,
        )
        return Spent(compute_s=max(compute_s, self._host_s(work) - shown_s), exposed_comm_s=shown_s)

    def _host_s(self, work: Pass) -> float:
        kernels = sum(each.kernels if isinstance(each, Streaming) else 1 for each in work.kernels)
        return (kernels + len(work.messages)) * self.setup.framework.host_s

    def message_s(self, message: Message) -> float:
        return self.collective_s(message.kind, message.nbytes, message.axis)

    def collective_s(self, kind: CollectiveKind, nbytes: float, axis: Axis) -> float:
        """Over a model-parallel axis: neighbours are ``tp``, then ``cp``, then data-parallel."""
        setup = self.setup
        inside = {"tp": 1, "cp": setup.tp, "ep": setup.tp * setup.cp}[axis]
        ranks = {"tp": setup.tp, "cp": setup.cp, "ep": setup.ep}[axis]
        return self._group_s(kind, nbytes, ranks, inside)

    def data_parallel_s(self, kind: CollectiveKind, nbytes: float) -> float:
        """Over all ranks with the same weights: ``cp`` and ``dp`` together."""
        setup = self.setup
        return self._group_s(kind, nbytes, setup.dp * setup.cp, setup.tp)

    def sharded_s(self, kind: CollectiveKind, nbytes: float) -> float:
        """Over the ranks that share states: neighbours among those with the same weights."""
        return self._group_s(kind, nbytes, shards_of(self.setup), self.setup.tp)

    def replicated_s(self, kind: CollectiveKind, nbytes: float) -> float:
        """Over the ranks that hold the same shard, one in each replica."""
        setup = self.setup
        return self._group_s(kind, nbytes, setup.replicas, setup.tp * shards_of(setup))

    def stage_send_s(self) -> float:
        """One microbatch's activations from a stage to the next one's ranks."""
        setup = self.setup
        nbytes = 2 * setup.tokens * setup.model.hidden
        split = setup.sequence_parallel or setup.framework.gathers_p2p
        apart = setup.tp * setup.cp * setup.dp
        sent_s = self._group_s("send_recv", nbytes / (setup.tp if split else 1), 2, apart)
        if split and not setup.sequence_parallel:
            sent_s += self.collective_s("all_gather", nbytes, "tp")
        return sent_s

    def _group_s(self, kind: CollectiveKind, nbytes: float, ranks: int, inside: int) -> float:
        """A group whose neighbours are ``inside`` ranks apart."""
        if ranks == 1:
            return 0.0
        per_node = max(1, min(ranks, self.setup.gpus_per_node // inside))
        return collective_s(kind, nbytes, ranks, per_node, self.cluster)
