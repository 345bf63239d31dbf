"""Plans of 1,024 GPUs whose ranks are measured: what they are pinned to, and which ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from autoplan import api, subject
from autoplan.captured import captured
from autoplan.plan import Plan
from autoplan.trace.graph import OpGraph


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A plan by its pins, and ranks of it; rank 0, which hands out the weights, is none of them."""

    model: str
    cluster: str
    nodes: int
    microbatches: int
    seq_len: int
    pins: Mapping[str, int | str]
    ranks: tuple[int, ...]

    @property
    def words(self) -> str:
        pins = ", ".join(f"{name} {value}" for name, value in self.pins.items())
        return f"{self.model}, {self.microbatches} microbatches of 1, {pins}"

    def plan(self) -> Plan:
        """What the planner makes of the pins."""
        return api.plan(
            self.model,
            cluster=self.cluster,
            nodes=self.nodes,
            global_batch=int(self.pins["dp"]) * self.microbatches,
            seq_len=self.seq_len,
            pins={**self.pins, "microbatch": 1},
        )


CASES = {
    "1f1b": Case(
        model="llama3-70b", cluster="dgx-h100", nodes=128, microbatches=16, seq_len=4096,
        pins={"pp": 8, "dp": 16, "tp": 8, "zero": 1, "schedule": "1f1b", "recompute": "full"},
        ranks=(1, 517, 1023),
    ),
    "hybrid": Case(
        model="llama3-70b", cluster="dgx-h100", nodes=128, microbatches=2, seq_len=4096,
        pins={"pp": 1, "dp": 128, "tp": 8, "zero": 3, "replicas": 4, "recompute": "full"},
        ranks=(5, 517, 1023),
    ),
    "interleaved": Case(
        model="gpt3-175b", cluster="dgx-a100-80g", nodes=128, microbatches=16, seq_len=2048,
        pins={"pp": 8, "dp": 16, "tp": 8, "zero": 1, "schedule": "interleaved_1f1b",
              "stages_per_rank": 3},
        ranks=(1, 517, 1023),
    ),
    "whole": Case(
        model="llama3.2-1b", cluster="dgx-h100", nodes=128, microbatches=8, seq_len=4096,
        pins={"pp": 4, "dp": 32, "tp": 8, "zero": 0, "schedule": "1f1b", "recompute": "none"},
        ranks=(1, 517, 1023),
    ),
}  # fmt: skip


def traced(plan: Plan) -> tuple[nn.Module, OpGraph]:
    """The model of a plan, on the meta device, and its graph."""
    case = subject.given(subject.named(plan.job.model), plan.job.model, None, None)
    return case.model, captured(case, plan.job)
