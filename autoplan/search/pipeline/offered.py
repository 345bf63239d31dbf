"""The configurations of a job on a model."""

from __future__ import annotations

from autoplan.search.pipeline.configs import Config, configs
from autoplan.search.pricing import Pricing
from autoplan.sharding.batch import batch_layout
from autoplan.trace.stack import Stack


def offered_configs(pricing: Pricing, stack: Stack, degrees: tuple[int, ...]) -> tuple[Config, ...]:
    """All configurations that the job allows; ``degrees`` are the admissible ones of ``tp``."""
    return tuple(
        configs(
            pricing.job,
            degrees,
            len(stack.items),
            mixes_batch=bool(batch_layout(pricing.graph).mixing),
            interleaves=_is_uniform(stack),
        )
    )


def _is_uniform(stack: Stack) -> bool:
    """Whether blocks of one kind follow each other, parts of the root before and behind alone."""
    kinds = [item.kind for item in stack.items]
    blocks = [number for number, kind in enumerate(kinds) if kind]
    return len(set(kinds) - {""}) == 1 and blocks[-1] - blocks[0] == len(blocks) - 1
