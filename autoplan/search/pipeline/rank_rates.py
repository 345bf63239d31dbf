"""What counts in the objectives of every rank of a configuration, at any price of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from autoplan.search.pipeline.item_prices import Rates
from autoplan.search.pipeline.objectives import Counted, RankObjective, Row, Weights


@dataclass(frozen=True, kw_only=True)
class RankRates:
    """Rates of all ranks.

    Attributes:
        objectives: of each rank.
        row: the items that they run.
    """

    objectives: tuple[RankObjective, ...]
    row: Row

    @property
    def ranks(self) -> range:
        return range(len(self.objectives))

    @property
    def stages_per_rank(self) -> int:
        return self.row.shape.stages_per_rank

    def weights(self, name: str, rank: int) -> Weights:
        """How often seconds of a rank count in its ``share`` or its ``extra``."""
        return getattr(self.objectives[rank], name)

    def rates(self, name: str, rank: int, byte_price_s: float, *, of_blocks: bool) -> Rates:
        """What counts in one objective of a rank at a price of memory for both together.

        Args:
            of_blocks: for blocks, or for parts of the root.
        """
        objective = self.objectives[rank]
        counted = self._counted[name, rank, of_blocks]
        byte = byte_price_s * self.weights(name, rank).backwards / objective.backwards
        ends_step = name == "share" and objective.ends_step
        alone, one_stage = len(self.objectives) == 1, self.stages_per_rank == 1
        reduces = one_stage or (objective.ends_in_root and not of_blocks)
        return Rates(
            forward=counted.forward,
            backward_input=counted.backward_input,
            backward_weight=counted.backward_weight,
            head=float((name == "share") == alone and one_stage),
            tail=float(ends_step and reduces),
            optimizer=float(ends_step),
            byte=byte,
            kept_byte=byte * self.held(rank, of_blocks=of_blocks),
        )

    def of_ranks(self, name: str, byte_price_s: float, *, of_blocks: bool) -> Sequence[Rates]:
        """Rates of all ranks."""
        return [self.rates(name, rank, byte_price_s, of_blocks=of_blocks) for rank in self.ranks]

    def bytes_of_ranks(self, *, of_blocks: bool) -> Sequence[Rates]:
        """Rates that count bytes alone."""
        return [
            Rates(
                forward=0.0, backward_input=0.0, backward_weight=0.0, head=0.0, tail=0.0,
                optimizer=0.0, byte=1.0, kept_byte=self.held(rank, of_blocks=of_blocks),
            )
            for rank in self.ranks
        ]  # fmt: skip

    def held(self, rank: int, *, of_blocks: bool) -> float:
        """Microbatches whose activations a rank holds, of its blocks or its parts of the root."""
        return self._held[rank, of_blocks]

    @cached_property
    def _held(self) -> Mapping[tuple[int, bool], float]:
        return {
            (rank, of_blocks): self.row.mean(rank, objective.held, of_blocks=of_blocks)
            for rank, objective in enumerate(self.objectives)
            for of_blocks in (True, False)
        }

    @cached_property
    def _counted(self) -> Mapping[tuple[str, int, bool], Counted]:
        return {
            (name, rank, of_blocks): Counted(
                *(
                    self.row.mean(rank, values, of_blocks=of_blocks)
                    for values in zip(*self.weights(name, rank).stages, strict=True)
                )
            )
            for name in ("share", "extra")
            for rank in self.ranks
            for of_blocks in (True, False)
        }
