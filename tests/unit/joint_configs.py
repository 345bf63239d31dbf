"""Random configurations of small pipelines, for the tests of the search over pipelines."""

from __future__ import annotations

from random import Random

from autoplan.search.pipeline.configs import Config


def flat(draw: Random) -> Config:
    """No pipeline: any ZeRO stage, hybrid or not."""
    dp, cp = draw.choice((1, 2, 4, 8, 16)), draw.choice((1, 1, 2, 4))
    zero = draw.randint(0, 3) if dp * cp > 1 else 0
    return Config(
        pp=1,
        dp=dp,
        cp=cp,
        tp=draw.choice((1, 2)),
        zero=zero,
        replicas=_replicas(draw, dp * cp, zero),
        microbatch=1,
        num_microbatches=draw.choice((1, 2, 3, 8)),
        schedule=None,
        stages_per_rank=1,
        outermost="pp",
    )


def staged(draw: Random) -> Config:
    """1F1B or zero bubble with two to four ranks, often with hardly more microbatches."""
    pp, dp = draw.choice((2, 2, 3, 3, 4)), draw.choice((1, 2, 4))
    cp = draw.choice((1, 1, 2))
    zero = draw.choice((0, 1, 1)) if dp * cp > 1 else 0
    schedule = draw.choice(("1f1b", "zero_bubble"))
    return Config(
        pp=pp,
        dp=dp,
        cp=cp,
        tp=draw.choice((1, 2)),
        zero=zero,
        replicas=_replicas(draw, dp * cp, zero),
        microbatch=1,
        num_microbatches=pp * draw.choice((1, 1, 2, 3)) + (schedule == "1f1b") * draw.randint(0, 2),
        schedule=schedule,
        stages_per_rank=1,
        outermost=draw.choice(("pp", "dp")),
    )


def interleaved(draw: Random) -> Config:
    """Two stages for each of two ranks."""
    dp, cp = draw.choice((1, 2, 4)), draw.choice((1, 1, 2))
    zero = draw.choice((0, 1, 1)) if dp * cp > 1 else 0
    return Config(
        pp=2,
        dp=dp,
        cp=cp,
        tp=draw.choice((1, 2)),
        zero=zero,
        replicas=_replicas(draw, dp * cp, zero),
        microbatch=1,
        num_microbatches=draw.choice((2, 4, 6)),
        schedule="interleaved_1f1b",
        stages_per_rank=2,
        outermost=draw.choice(("pp", "dp")),
    )


def _replicas(draw: Random, ranks: int, zero: int) -> int:
    if not zero:
        return 1
    return draw.choice([n for n in (1, 2, 4) if n == 1 or (ranks % n == 0 and n < ranks)])
