"""The estimate of a rank's memory, kind by kind, beside what lived in a step of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from autoplan.plan import Plan
from autoplan.trace.graph import OpGraph
from benchmarks.live_bytes import fake_rank
from benchmarks.live_bytes.fake_rank import lived
from cost_models.memory import MemoryBreakdown


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """One rank: bytes by kind, (estimated, counted)."""

    rank: int
    by_kind: Mapping[str, tuple[int, int]]

    @property
    def ratio(self) -> float:
        """Of all counted bytes to all estimated."""
        estimated, counted = map(sum, zip(*self.by_kind.values(), strict=True))
        return counted / estimated


def compared(
    plan: Plan, model: nn.Module, graph: OpGraph, ranks: Iterable[int]
) -> Iterator[Compared]:
    """Some ranks of a plan."""
    for rank in ranks:
        found = lived(plan, model, graph, rank)
        estimated = _by_kind(estimate_of(plan, rank))
        yield Compared(
            rank=rank,
            by_kind={
                kind: (nbytes, found.by_kind.get(kind, 0)) for kind, nbytes in estimated.items()
            },
        )


def estimate_of(plan: Plan, rank: int) -> MemoryBreakdown:
    """The memory of the pipeline rank that a rank of the world is."""
    mesh = plan.mesh
    outer = rank // mesh.tp
    place = outer // mesh.dp if mesh.outermost == "pp" else outer % mesh.pp
    return plan.estimate.stages[place].memory


def _by_kind(memory: MemoryBreakdown) -> dict[str, int]:
    """Without what the device's context and libraries take."""
    return {
        fake_rank.PARAMETERS: memory.parameters,
        fake_rank.OPTIMIZER: memory.optimizer_state,
        fake_rank.GRADIENTS: memory.gradients,
        fake_rank.GATHERED: memory.gathered_parameters,
        fake_rank.ACTIVATIONS: memory.activations,
        fake_rank.PASSING: memory.transient + memory.communication_buffers,
    }
