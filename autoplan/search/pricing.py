"""Prices what one job is made of, each part once: choices by ``tp``, operators by microbatch."""

from __future__ import annotations

from functools import cached_property

from autoplan.job import Job
from autoplan.search.folded_graph import fold
from autoplan.search.kernels import is_worth_splitting
from autoplan.search.operator_costs import MicrobatchCosts, microbatch_costs
from autoplan.search.overrides import overrides_of
from autoplan.search.regions.patterns import Patterns
from autoplan.search.shared_samples import is_mostly_tables
from autoplan.search.space import Space, build_space
from autoplan.sharding.context import context_graph
from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.rules import GraphRules
from autoplan.sharding.rules.batch_norm import needs_one_microbatch
from autoplan.sharding.strategies import Strategy
from autoplan.trace.graph import OpGraph, OpNode, TensorMeta
from hardware_profiles.spec import ClusterSpec


class Pricing:
    """The cost model of one job on one cluster; remembers what it has priced.

    Attributes:
        cp: the ranks that split the tokens, of one of which ``graph`` is.
        whole_graph: the model's, which is ``graph`` where nothing splits tokens.
        patterns: of its regions, whatever the microbatch.
    """

    def __init__(
        self,
        graph: OpGraph,
        job: Job,
        cluster: ClusterSpec,
        *,
        cp: int = 1,
        whole_graph: OpGraph | None = None,
    ) -> None:
        self.cp = cp
        self.whole_graph = whole_graph or graph
        self.graph = graph
        self.job = job
        self.cluster = cluster
        self.folded = fold(graph)
        self.overrides = overrides_of(self.folded, job.placements)
        given_bytes = job.memory_limit_bytes or cluster.device.memory_bytes
        self.limit_bytes = int(given_bytes * (1 - job.memory_margin))
        self._rules = GraphRules(graph)
        self._strategies: dict[tuple[str, MeshAxis], tuple[Strategy, ...]] = {}
        self.patterns = Patterns()
        self._spaces: dict[MeshAxis, Space] = {}
        self._microbatches: dict[tuple[int, int], MicrobatchCosts] = {}
        self._at_cp: dict[int, Pricing] = {}

    def for_job(self, job: Job, cluster: ClusterSpec | None = None) -> Pricing:
        """The cost model of another job, on the same cluster unless another one is given; shares
        what depends on neither."""
        other = Pricing(
            self.graph, job, cluster or self.cluster, cp=self.cp, whole_graph=self.whole_graph
        )
        other._at_cp = {cp: each.for_job(job, cluster) for cp, each in self._at_cp.items()}
        other._rules, other._strategies = self._rules, self._strategies
        other.patterns = self.patterns
        if job.placements == self.job.placements:
            other._spaces = self._spaces
            if cluster is None and job.gpus_per_node == self.job.gpus_per_node:
                other._microbatches = self._microbatches
        return other

    def at_cp(self, cp: int) -> Pricing:
        """The cost model of one of ``cp`` ranks that split the tokens.

        Raises:
            PlanError: they cannot be split over so many.
        """
        if cp == self.cp:
            return self
        if cp not in self._at_cp:
            whole = self.whole_graph
            self._at_cp[cp] = Pricing(
                context_graph(whole, cp), self.job, self.cluster, cp=cp, whole_graph=whole
            )
        return self._at_cp[cp]

    def strategies_of(self, node: OpNode, axis: MeshAxis) -> tuple[Strategy, ...]:
        """Strategies of a call on ``tp``, whatever the microbatch."""
        key = node.name, axis
        if key not in self._strategies:
            self._strategies[key] = tuple(
                strategy
                for strategy in self._rules.strategies(node, axis)
                if is_worth_splitting(node, strategy, axis.size)
            )
        return self._strategies[key]

    @cached_property
    def shares_samples(self) -> bool:
        """Whether ranks of ``tp`` may share the samples of a microbatch that they divide."""
        return is_mostly_tables(self.graph)

    @cached_property
    def syncs_statistics(self) -> bool:
        """Whether forward and backward send over the data-parallel ranks (BatchNorm)."""
        return needs_one_microbatch(self.graph) is not None

    def _space(self, axis: MeshAxis) -> Space:
        if axis not in self._spaces:
            self._spaces[axis] = build_space(self.folded, axis, self.strategies_of, self.overrides)
        return self._spaces[axis]

    @cached_property
    def buffer_bytes(self) -> int:
        """Buffers and constants, whole on every rank."""
        stored = (node for node in self.graph.nodes if node.kind in ("buffer", "constant"))
        return sum(meta.nbytes for node in stored for meta in node.outputs)

    @cached_property
    def trained_elements(self) -> tuple[int, ...]:
        """Elements of each parameter that learns, before any split."""
        stored = (meta for node in self.graph.of_kind("parameter") for meta in node.outputs)
        return tuple(meta.numel for meta in stored if meta.requires_grad)

    def input_bytes(self, dp: int) -> int:
        """A rank's inputs of one step."""
        samples = self.job.global_batch // dp
        return sum(
            meta.nbytes * samples // self.graph.batch if meta.batch_dims else meta.nbytes
            for meta in self._inputs
        )

    @cached_property
    def _inputs(self) -> tuple[TensorMeta, ...]:
        return tuple(meta for node in self.graph.of_kind("input") for meta in node.outputs)

    def microbatch(self, tp: int, size: int) -> MicrobatchCosts:
        """Prices of all choices over ``tp`` ranks for a microbatch."""
        key = tp, size
        if key not in self._microbatches:
            shares = tp > 1 and size % tp == 0 and self.shares_samples
            space = self._space(MeshAxis("tp", tp, shares_samples=shares))
            self._microbatches[key] = microbatch_costs(
                space, size, self.cluster, self.job.gpus_per_node
            )
        return self._microbatches[key]
