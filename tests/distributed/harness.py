"""Run a function on N gloo ranks, each a process forked from this one; results are any objects.

Results are pickled whole (``Connection.send`` would share tensors through the memory of a rank that
has ended).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autoplan.verification import processes
from autoplan.verification.processes import COLLECTIVE_TIMEOUT_S


@dataclass(frozen=True)
class Outcome:
    """How one rank ended: its result, the traceback of its exception, or neither (it died)."""

    result: Any = None
    error: str | None = None
    died: bool = False

    @property
    def ok(self) -> bool:
        return self.error is None and not self.died


class RankError(AssertionError):
    """At least one rank raised, died or hung; the message names each."""


def run_ranks(
    function: Callable[..., Any], world_size: int, *args: Any, deadline_s: float = 150
) -> list[Any]:
    """Results of ``function(rank, *args)`` by rank, inside a gloo process group.

    Raises:
        RankError: with the traceback of every rank that raised.
    """
    outcomes = run_outcomes(function, world_size, *args, deadline_s=deadline_s)
    failed = {rank: outcome for rank, outcome in enumerate(outcomes) if not outcome.ok}
    if failed:
        raise RankError(
            "\n".join(
                f"rank {rank} of {world_size}: {outcome.error or 'died or hung'}"
                for rank, outcome in failed.items()
            )
        )
    return [outcome.result for outcome in outcomes]


def run_outcomes(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    deadline_s: float = 150,
    timeout_s: float = COLLECTIVE_TIMEOUT_S,
) -> list[Outcome]:
    """How every rank ended; raises nothing on behalf of the ranks."""
    endings = processes.run_ranks(
        lambda rank: pickle.dumps(function(rank, *args)),
        world_size,
        deadline_s=deadline_s,
        timeout_s=timeout_s,
    )
    return [
        Outcome(pickle.loads(ending.result) if ending.ok else None, ending.error, ending.died)
        for ending in endings
    ]
