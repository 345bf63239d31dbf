"""Prices a plan on the whole graph, block by block and tensor by tensor, from the definitions.

Nothing of ``autoplan.search`` is used: strategies come from the plan through ``assign``, prices
from ``cost_models``. Blocks are walked one by one, so that folding and sharing are checked.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

from autoplan.capabilities import ZERO_STAGES
from autoplan.plan import Plan
from autoplan.sharding.assignment import Assignment, assign
from autoplan.sharding.placement import Placement, Replicate, Shard, grad_of, local_fraction
from autoplan.sharding.redistribute import conversion, messages
from autoplan.sharding.strategies import Port
from autoplan.trace.graph import Block, OpGraph, OpNode, Ref
from cost_models.collectives import collective_s
from cost_models.compute import kernel_s
from cost_models.memory import weight_bytes
from cost_models.overlap import exposed_s
from cost_models.work import Gemm, Streaming
from hardware_profiles.spec import ClusterSpec


class Oracle:
    """One plan on one graph; fp32, AdamW, ``tp`` inside a node."""

    def __init__(self, graph: OpGraph, plan: Plan, cluster: ClusterSpec) -> None:
        self.plan = plan
        self.cluster = cluster
        self.graph = graph.at_batch(plan.microbatch)
        self.tp, self.dp = plan.mesh.tp, plan.mesh.dp
        self.assignment: Assignment = assign(graph, plan.regions, self.tp)
        self.recomputed = {path for region in plan.regions for path in region.recomputed}
        self.stage = ZERO_STAGES[plan.zero if self.dp > 1 else 0]

    def _is_recomputed(self, name: str) -> bool:
        block = self.graph.block_of.get(name)
        return block is not None and block.path in self.recomputed

    def _again(self, name: str) -> bool:
        """Whether a call runs twice: in a recomputed block, unless nothing made from it is saved
        there."""
        return self._is_recomputed(name) and name in self._saved_from

    @cached_property
    def _saved_from(self) -> set[str]:
        """Calls that make what their own block saves, or from which it is made."""
        found: set[str] = set()
        for node in reversed(list(self.graph.of_kind("call"))):
            block = self.graph.block_of.get(node.name)
            kept = [
                node.operands[saved.operand] for saved in node.saved if saved.operand is not None
            ]
            for ref in {*kept, *(node.operands if node.name in found else ())}:
                if block is not None and self.graph.block_of.get(ref.node) is block:
                    found.add(ref.node)
        return found

    def _reads_again(self, node: OpNode, number: int) -> bool:
        keeps = any(saved.operand == number for saved in node.saved)
        return self._is_recomputed(node.name) and (keeps or node.name in self._saved_from)

    def _fraction(self, placement: Placement) -> float:
        return local_fraction(placement, self.tp)

    def op_s(self, node: OpNode) -> tuple[float, float]:
        """Forward and backward seconds of a call for one microbatch."""
        if all(node.alias_of):
            return 0.0, 0.0
        strategy = self.assignment.strategies[node.name]
        read = {
            (ref, port.placement) for ref, port in zip(node.operands, strategy.inputs, strict=True)
        }
        if node.target == "aten.linear.default":
            return self._linear_s(node)
        nbytes = sum(self.graph.meta(ref).nbytes * self._fraction(at) for ref, at in read)
        nbytes += node.outputs[0].nbytes * self._fraction(strategy.outputs[0])
        once, twice = Streaming(bytes=nbytes), Streaming(bytes=2 * nbytes)
        return kernel_s(once, self.cluster.device), kernel_s(twice, self.cluster.device)

    def _linear_s(self, node: OpNode) -> tuple[float, float]:
        """Three products, of which the gradient of the model's input is left out."""
        tokens, weight = (self.graph.meta(ref) for ref in node.operands)
        ports = self.assignment.strategies[node.name].inputs
        at, weight_at = (
            port.placement.dim if isinstance(port.placement, Shard) else None for port in ports
        )
        m = tokens.numel // tokens.shape[-1] // (self.tp if at in (0, 1) else 1)
        n = weight.shape[0] // (self.tp if weight_at == 0 else 1)
        k = weight.shape[1] // (self.tp if weight_at == 1 else 1)

        def seconds(rows: int, columns: int, summed: int) -> float:
            work = Gemm(m=rows, n=columns, k=summed, dtype="float32", output_bytes=4)
            return kernel_s(work, self.cluster.device)

        back = seconds(m, k, n) if tokens.requires_grad else 0.0
        return seconds(m, n, k), back + seconds(k, n, m)

    def compute_s(self) -> tuple[float, float]:
        """Forward, and backward with the recomputed forwards, of one microbatch."""
        forward = backward = 0.0
        for node in self.graph.of_kind("call"):
            ahead, back = self.op_s(node)
            forward += ahead
            backward += back + (ahead if self._again(node.name) else 0.0)
        return forward, backward

    def tp_s(self) -> float:
        """Conversions of one microbatch: per tensor and place, one for each different port."""
        wanted: dict[tuple[str, Ref, Placement], dict[Port, bool]] = defaultdict(dict)
        for node in self.graph.of_kind("call"):
            block = self.graph.block_of.get(node.name)
            entering = self._entering(block)
            place = block.path if block else ""
            ports = self.assignment.strategies[node.name].inputs
            for number, (ref, port) in enumerate(zip(node.operands, ports, strict=True)):
                known = wanted[place, ref, entering.get(ref, self._produced(ref))]
                known[port] = known.get(port, False) or self._reads_again(node, number)
        for block in self.graph.blocks:
            for ref, entry in self._entering(block).items():
                wanted["", ref, self._produced(ref)].setdefault(Port(entry, grad_of(entry)), False)
        out = self.graph.output
        wanted["", out, self._produced(out)].setdefault(Port(Replicate(), Replicate()), False)
        total = 0.0
        for (_, ref, source), ports in wanted.items():
            for port, again in ports.items():
                total += self._conversion_s(ref, source, port, again=again)
        return total

    def _entering(self, block: Block | None) -> dict[Ref, Placement]:
        if block is None:
            return {}
        return dict(zip(block.inputs, self.assignment.entries[block.path], strict=True))

    def _produced(self, ref: Ref) -> Placement:
        node = self.graph.by_name[ref.node]
        if node.kind == "parameter":
            return self.assignment.storage[node.name]
        if node.kind == "call":
            return self.assignment.strategies[node.name].outputs[ref.index]
        return Replicate()

    def _conversion_s(self, ref: Ref, source: Placement, port: Port, *, again: bool) -> float:
        meta = self.graph.meta(ref)
        found = conversion(source, port, differentiable=meta.requires_grad)
        if found is None:
            return 0.0
        forward, backward = messages(found, meta.nbytes, self.tp)
        ahead = sum(self._collective_s(kind, size, self.tp, self.tp) for kind, size in forward)
        back = sum(self._collective_s(kind, size, self.tp, self.tp) for kind, size in backward)
        return ahead * (2 if again else 1) + back

    def _collective_s(self, kind: str, nbytes: float, ranks: int, per_node: int) -> float:
        return collective_s(kind, nbytes, ranks, per_node, self.cluster)  # type: ignore[arg-type]

    def unit_elements(self) -> dict[str, float]:
        """Elements that one rank holds of each unit before any split over dp."""
        found: dict[str, float] = defaultdict(float)
        for node in self.graph.of_kind("parameter"):
            path = next((b.path for b in self.graph.blocks if node.name in b.parameters), "")
            share = self._fraction(self.assignment.storage[node.name])
            found[path] += node.outputs[0].numel * share
        return found

    def dp_exposed_s(self) -> float:
        """Data-parallel messages of a step that no compute hides; ZeRO 1 to 3."""
        count, efficiency = self.plan.num_microbatches, self.cluster.overlap_efficiency
        forward, backward = self.compute_s()
        per_node = min(self.dp, self.plan.job.gpus_per_node // self.tp)
        gather = reduce = root = 0.0
        for path, elements in self.unit_elements().items():
            one_gather = self._collective_s("all_gather", 4 * elements, self.dp, per_node)
            one_reduce = self._collective_s("reduce_scatter", 4 * elements, self.dp, per_node)
            if path:
                gather, reduce = gather + one_gather, reduce + one_reduce
            elif self.plan.zero == 3:
                root += count * (2 * one_gather + one_reduce)
            else:
                root += one_gather + one_reduce * (count if self.plan.zero == 2 else 1)
        if self.plan.zero == 1:
            hidden = exposed_s(gather, forward, efficiency)
            return root + hidden + exposed_s(reduce, backward, efficiency)
        if self.plan.zero == 2:
            hidden = exposed_s(gather, forward, efficiency)
            return root + hidden + count * exposed_s(reduce, backward, efficiency)
        hidden = count * exposed_s(gather, forward, efficiency)
        return root + hidden + count * exposed_s(gather + reduce, backward, efficiency)

    def optimizer_s(self) -> float:
        """AdamW moves 84 bytes for every element that the rank updates."""
        share = self.dp if self.stage.shards_states else 1
        device = self.cluster.device
        rate = device.memory_bytes_per_s * device.memory_efficiency
        return sum(self.unit_elements().values()) / share * 84 / rate

    def weight_bytes(self) -> dict[str, float]:
        """Bytes by category that are linear in the weights."""
        each = weight_bytes(precision="fp32", optimizer="adamw", dp=self.dp, stage=self.stage)
        elements = sum(self.unit_elements().values())
        names = ("parameters", "gradients", "optimizer_state")
        return {name: getattr(each, name) * elements for name in names}

    def kept_bytes(self) -> float:
        """Activations of one microbatch: each storage once per placement in which it is kept."""
        kept: dict[tuple[str, Ref, Placement], float] = {}
        for node in self.graph.of_kind("call"):
            block = self.graph.block_of.get(node.name)
            if block is not None and block.path in self.recomputed:
                continue
            strategy = self.assignment.strategies[node.name]
            entering = self._entering(block)
            for saved in node.saved:
                assert saved.operand is not None
                placement = strategy.inputs[saved.operand].placement
                ref = node.operands[saved.operand]
                is_whole_entry = entering.get(ref) == placement
                place = block.path if block and not is_whole_entry else ""
                kept[place, ref, placement] = saved.nbytes * self._fraction(placement)
        for block in self.graph.blocks:
            if block.path in self.recomputed:
                for ref, entry in self._entering(block).items():
                    kept["", ref, entry] = self.graph.meta(ref).nbytes * self._fraction(entry)
        return sum(kept.values()) + self._weight_copies()

    def _weight_copies(self) -> float:
        """Weights that are gathered over tp for a reader stay until its backward."""
        found: dict[tuple[Ref, Port], float] = {}
        for node in self.graph.of_kind("call"):
            ports = self.assignment.strategies[node.name].inputs
            for ref, port in zip(node.operands, ports, strict=True):
                if ref.node in self.assignment.storage and not self._is_recomputed(node.name):
                    source, meta = self._produced(ref), self.graph.meta(ref)
                    change = conversion(source, port, differentiable=True)
                    if change is not None and messages(change, meta.nbytes, self.tp)[0]:
                        found[ref, port] = meta.nbytes * self._fraction(port.placement)
        return sum(found.values())
