"""Heads and tokens of one rank: what tensor parallelism splits, and what it repeats."""

from __future__ import annotations

from autoplan.validation.setups.setup import Setup


def local_heads(setup: Setup) -> tuple[int, int]:
    """Query heads and key/value heads of a rank; heads that cannot be split are repeated."""
    return -(-setup.model.heads // setup.tp), -(-setup.model.kv_heads // setup.tp)


def residual_tokens(setup: Setup) -> int:
    """Tokens of a rank between blocks."""
    return -(-setup.tokens // setup.tp) if setup.sequence_parallel else setup.tokens
