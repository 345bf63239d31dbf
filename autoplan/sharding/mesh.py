"""Mesh axes as the rules and the lowering see them.

The batch is split by two axes that behave alike: ``dp`` (ranks side by side) and ``mb``
(microbatches one after another on the same rank, so no message can pass between them). ``tp`` is
the axis on which operators are placed one by one. Its ranks all have the samples of a microbatch;
where it ``shares_samples`` they may share these out for some operators, each taking neighbours.
``cp`` splits the tokens of samples that its ranks have together (``sharding.context``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """One axis of the mesh: its name and how many ranks (or microbatches) it has.

    ``shares_samples`` is about ``tp``: whether operators may split the batch on it as well.
    """

    name: Literal["mb", "dp", "cp", "tp"]
    size: int
    shares_samples: bool = False

    @property
    def splits_batch(self) -> bool:
        return self.name in ("mb", "dp")

    @property
    def splits_tokens(self) -> bool:
        return self.name == "cp"
