"""One thread per rank, with collectives that meet at a barrier: fast, and on plain tensors.

Stands in for torch's collectives, so it shows that a program and its pairs of messages are right,
not that torch's are. (The messages themselves run on torch's collectives in
``tests/unit/test_collectives.py``.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, BrokenBarrierError
from typing import TypeVar
from unittest import mock

import torch
from torch import Tensor

from autoplan.runtime import torch_private
from autoplan.runtime.collectives import AxisGroup

T = TypeVar("T")
TIMEOUT_S = 60.0


def on_ranks(size: int, run: Callable[[AxisGroup], T]) -> list[T]:
    """The results of ``run`` on every rank of ``tp``, by rank.

    Raises:
        Exception: the first failure that is not just another rank's.
    """
    with _meeting(size) as barrier, ThreadPoolExecutor(size) as pool:

        def guarded(rank: int) -> T:
            try:
                return run(AxisGroup("tp", size, rank, str(rank)))
            except BaseException:
                barrier.abort()
                raise

        futures = [pool.submit(guarded, rank) for rank in range(size)]
        errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        raise next((e for e in errors if not isinstance(e, BrokenBarrierError)), errors[0])
    return [future.result() for future in futures]


@contextmanager
def _meeting(size: int) -> Iterator[Barrier]:
    """Collectives by barrier; ranks that issue different ones are told so."""
    barrier = Barrier(size, timeout=TIMEOUT_S)
    nothing = ("", torch.empty(0))
    slots: list[tuple[str, Tensor]] = [nothing] * size

    def meet(kind: str, x: Tensor, group: str) -> list[Tensor]:
        slots[int(group)] = (f"{kind} {tuple(x.shape)} {x.dtype}", x)
        barrier.wait()
        kinds, tensors = zip(*slots, strict=True)
        barrier.wait()
        slots[int(group)] = nothing  # else it would live until the next message
        assert len(set(kinds)) == 1, f"ranks meet for different collectives: {set(kinds)}"
        assert x.is_contiguous()
        return list(tensors)

    def all_reduce(x: Tensor, op: str, group: str) -> Tensor:
        stacked = torch.stack(meet(f"all_reduce {op}", x, group))
        return stacked.amax(0) if op == "max" else stacked.sum(0, dtype=x.dtype)

    def all_gather(x: Tensor, ranks: int, group: str) -> Tensor:
        assert ranks == size
        return torch.cat(meet("all_gather", x, group))

    def reduce_scatter(x: Tensor, op: str, ranks: int, group: str) -> Tensor:
        assert (op, ranks) == ("sum", size)
        return torch.stack(meet("reduce_scatter", x, group)).sum(0).chunk(size)[int(group)].clone()

    def all_to_all(x: Tensor, received: list[int], sent: list[int], group: str) -> Tensor:
        assert received == sent == [1] * size
        return torch.stack([other[int(group)] for other in meet("all_to_all", x, group)])

    with mock.patch.multiple(
        torch_private,
        all_reduce=all_reduce,
        all_gather=all_gather,
        reduce_scatter=reduce_scatter,
        all_to_all=all_to_all,
        wait=lambda x: x,
    ):
        yield barrier
