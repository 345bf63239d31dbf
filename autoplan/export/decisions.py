"""What a plan decides, in the words that other frameworks share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from autoplan.plan import Plan

Recompute = Literal["none", "full", "some blocks", "operators"]


@dataclass(frozen=True, slots=True)
class Decisions:
    """A plan, asked for what configurations have in common."""

    plan: Plan

    @property
    def shards(self) -> int:
        """Data-parallel ranks that share one copy of the states under ZeRO."""
        return self.plan.mesh.dp // self.plan.replicas

    @property
    def local_batch(self) -> int:
        """Samples of one data-parallel rank and step."""
        return self.plan.microbatch * self.plan.num_microbatches

    @property
    def recompute(self) -> Recompute:
        """What runs again in the backward."""
        if any(region.recomputed_operators for region in self.plan.regions):
            return "operators"
        again = len(self.recomputed_blocks)
        if not again:
            return "none"
        return "full" if again == len(self.blocks) else "some blocks"

    @property
    def blocks(self) -> tuple[str, ...]:
        return tuple(block for region in self.plan.regions for block in region.blocks)

    @property
    def recomputed_blocks(self) -> frozenset[str]:
        """Paths of the blocks that run again as a whole."""
        return frozenset(block for region in self.plan.regions for block in region.recomputed)

    @property
    def splits_sequence(self) -> bool:
        """Whether what enters blocks is split along the sequence over ``tp``."""
        return any("Shard(1)" in region.inputs for region in self.plan.regions if region.blocks)

    @property
    def stage_sizes(self) -> tuple[int, ...]:
        """Blocks of each pipeline stage, in the model's order; of all without a pipeline."""
        stages = self.plan.stages
        return tuple(len(stage.blocks) for stage in stages) if stages else (len(self.blocks),)

    @property
    def stages_per_rank(self) -> int:
        return max(1, len(self.plan.stages) // self.plan.mesh.pp)

    @property
    def is_one_stack(self) -> bool:
        """Whether all blocks stand in one list of the model, as in a decoder or an encoder."""
        return len({block.rpartition(".")[0] for block in self.blocks}) == 1

    @property
    def recomputed_by_stage(self) -> tuple[int, ...]:
        """Blocks of each stage that run again as a whole."""
        again = self.recomputed_blocks
        stages = self.plan.stages
        members = [stage.blocks for stage in stages] if stages else [self.blocks]
        return tuple(sum(block in again for block in each) for each in members)

    @property
    def parameters(self) -> Mapping[str, str]:
        """Where parameters are stored on ``tp``, by their full names."""
        return {
            f"{prefix}.{name}" if prefix else name: placement
            for region in self.plan.regions
            for prefix in region.blocks or ("",)
            for name, placement in region.parameters.items()
        }
