"""Messages as the runtime sends them: functional collectives, and pairs of sends and receives."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.profiler.bench import Run
from autoplan.profiler.probes import Exchange
from autoplan.runtime import torch_private as c10d

_FLOAT_BYTES = 4


def sender(probe: Exchange, group: dist.ProcessGroup, device: torch.device) -> Run:
    """Takes part once in the collective, as one rank of the group."""
    ranks, name = probe.ranks, group.group_name
    elements = max(ranks, probe.nbytes // _FLOAT_BYTES // ranks * ranks)
    x = torch.zeros(elements, device=device)
    shard = torch.zeros(elements // ranks, device=device)
    parts = [elements // ranks] * ranks

    def wait(result: Tensor) -> None:
        c10d.wait(result)

    calls: dict[str, Run] = {
        "all_reduce": lambda: wait(c10d.all_reduce(x, "sum", name)),
        "all_gather": lambda: wait(c10d.all_gather(shard, ranks, name)),
        "reduce_scatter": lambda: wait(c10d.reduce_scatter(x, "sum", ranks, name)),
        "all_to_all": lambda: wait(c10d.all_to_all(x, parts, parts, name)),
    }
    return calls[probe.kind] if probe.kind in calls else _to_and_fro(x, group)


def starts_sum(x: Tensor, group: dist.ProcessGroup) -> Callable[[], None]:
    """Starts an all-reduce; calling the result waits for it."""
    result = c10d.all_reduce(x, "sum", group.group_name)

    def wait() -> None:
        c10d.wait(result)

    return wait


def summed(x: Tensor, group: dist.ProcessGroup) -> Run:
    """One all-reduce, from start to end."""

    def run() -> None:
        starts_sum(x, group)()

    return run


def _to_and_fro(x: Tensor, group: dist.ProcessGroup) -> Run:
    """One message of a pair, from the first rank to the second and back by turns."""
    sends = dist.get_rank(group) == 0
    peer = 1 - dist.get_rank(group)

    def run() -> None:
        nonlocal sends
        kind = dist.isend if sends else dist.irecv
        for work in dist.batch_isend_irecv([dist.P2POp(kind, x, group=group, group_peer=peer)]):
            work.wait()
        sends = not sends

    return run
