"""Runs a function on N gloo ranks, each a process forked from this one.

Forking keeps the imported torch, so that a group of ranks starts in a fraction of a second where
``spawn`` takes many; the parent must not have run an operator on several threads before. Whatever
happens, no process outlives the deadline. Ranks hand back bytes, whole, or JSON values.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autoplan.letters import letter_of, opened

COLLECTIVE_TIMEOUT_S = 60
GRACE_S = 5
"""How long the other ranks may live on once one of them has failed."""

_DONE, _FAILED = b"+", b"-"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How one rank ended: its result, the traceback of its exception, or neither (it died)."""

    result: bytes = b""
    error: str | None = None
    died: bool = False

    @property
    def ok(self) -> bool:
        return self.error is None and not self.died


class RanksFailedError(Exception):
    """Ranks died, hung or raised what is no refusal.

    The message is one line on the first of them that did not only wait for others.
    """


def answer_of_ranks(
    work: Callable[[], Any],
    world_size: int,
    *,
    deadline_s: float,
    timeout_s: float = COLLECTIVE_TIMEOUT_S,
) -> Any:
    """What ``work()``, run by every rank, returned on rank 0: JSON values.

    Meanwhile this process computes on one thread, as the ranks do.

    Args:
        deadline_s, timeout_s: as for ``run_ranks``.

    Raises:
        AutoplanError: what ``work`` raised on rank 0.
        RanksFailedError: ranks that did not end well.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        endings = run_ranks(
            lambda _: letter_of(work).encode(),
            world_size,
            deadline_s=deadline_s,
            timeout_s=timeout_s,
        )
    finally:
        torch.set_num_threads(threads)
    if fault := _fault(endings):
        raise RanksFailedError(fault)
    return opened(endings[0].result)


def run_ranks(
    function: Callable[[int], bytes],
    world_size: int,
    *,
    deadline_s: float,
    timeout_s: float = COLLECTIVE_TIMEOUT_S,
) -> list[Ending]:
    """How ``function(rank)`` ended on every rank, inside a gloo process group.

    Args:
        deadline_s: when ranks that still run are ended.
        timeout_s: how long a rank waits for the others in a collective.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store")
        pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
        processes = [
            context.Process(
                target=_rank_main,
                args=(function, (rank, world_size), store, timeout_s, pipes[rank][1]),
            )
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        for _, sender in pipes:
            sender.close()
        try:
            return _collect([receiver for receiver, _ in pipes], time.monotonic() + deadline_s)
        finally:
            _end(processes)


def _rank_main(
    function: Callable[[int], bytes],
    place: tuple[int, int],
    store: Path,
    timeout_s: float,
    sender: Connection,
) -> None:
    torch.set_num_threads(1)
    rank, world_size = place
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank))
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_s),
        )
        result = function(rank)
        dist.barrier()
        sender.send_bytes(_DONE + result)
        dist.destroy_process_group()
    except BaseException:
        sender.send_bytes(_FAILED + traceback.format_exc().encode())
        sender.close()
        os._exit(1)


def _collect(receivers: Sequence[Connection], end_s: float) -> list[Ending]:
    endings = [Ending(died=True) for _ in receivers]
    waiting = {receiver: rank for rank, receiver in enumerate(receivers)}
    while waiting and (left_s := end_s - time.monotonic()) > 0:
        for receiver in wait(list(waiting), timeout=left_s):
            assert isinstance(receiver, Connection)
            rank = waiting.pop(receiver)
            endings[rank] = _read(receiver)
            if not endings[rank].ok:
                end_s = min(end_s, time.monotonic() + GRACE_S)
    return endings


def _read(receiver: Connection) -> Ending:
    try:
        letter = receiver.recv_bytes()
    except EOFError:
        return Ending(died=True)
    if letter[:1] == _DONE:
        return Ending(result=letter[1:])
    return Ending(error=letter[1:].decode())


def _fault(endings: Sequence[Ending]) -> str | None:
    """Why the ranks did not end well; of several reasons, not that of ranks that only waited."""
    failed = [(rank, ending) for rank, ending in enumerate(endings) if not ending.ok]
    if not failed:
        return None
    rank, ending = min(failed, key=lambda pair: _is_waiting(pair[1]))
    if ending.error is None:
        return f"rank {rank} died or hung"
    return f"rank {rank} failed: {ending.error.strip().splitlines()[-1]}"


def _is_waiting(ending: Ending) -> bool:
    return ending.error is None or "gloo" in ending.error


def _end(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.join(timeout=1)
        if process.is_alive():
            process.kill()
            process.join()
