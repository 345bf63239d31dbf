"""What processors do for others while steps are measured, which makes the steps take longer."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Load:
    """Shares of the processor time of one rank's node; numbers alone, for a row of a tensor.

    Attributes:
        own: what this rank's process took.
        node: what all processes took; 0 where the system does not tell.
    """

    own: float
    node: float


class LoadClock:
    """Starts with a look at what processors have done so far."""

    def __init__(self) -> None:
        self._started_s = time.perf_counter()
        self._own_s, self._node_s = time.process_time(), _busy_s()

    def load(self) -> Load:
        """Since the start."""
        could_s = (time.perf_counter() - self._started_s) * (os.cpu_count() or 1)
        own_s, node_s = time.process_time() - self._own_s, _busy_s() - self._node_s
        return Load(own_s / could_s, node_s / could_s)


def other_load(ranks: Sequence[Load], per_node: int) -> float | None:
    """The share of processor time that others took, on the node where it is largest.

    Args:
        ranks: of all ranks, node by node.
        per_node: ranks of one node.

    Returns:
        None where a system does not tell.
    """
    nodes = [ranks[first : first + per_node] for first in range(0, len(ranks), per_node)]
    if not all(node[0].node for node in nodes):
        return None
    return max(0.0, *(node[0].node - sum(rank.own for rank in node) for node in nodes))


def _busy_s() -> float:
    """Seconds that all processors of the machine worked since it started; 0 if it does not tell."""
    try:
        told = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _, _, *interrupts = map(int, told[:7])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
