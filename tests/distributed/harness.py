"""Run a function on N gloo ranks, each a process forked from this one.

Forking keeps the imported torch, so that a group of ranks starts in a fraction of a second where
``spawn`` takes many. The parent must not have run a parallel operator; ``conftest`` sets one
thread for that. Whatever happens, no process outlives the deadline. Results are pickled whole
(``Connection.send`` would share tensors through the memory of a rank that has ended).
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

COLLECTIVE_TIMEOUT_S = 60
GRACE_S = 5
"""How long the other ranks may live on once one of them has failed."""


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
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store")
        pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
        processes = [
            context.Process(
                target=_rank_main,
                args=(function, rank, world_size, store, timeout_s, pipes[rank][1], args),
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
    function: Callable[..., Any],
    rank: int,
    world_size: int,
    store: Path,
    timeout_s: float,
    sender: Connection,
    args: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank))
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_s),
        )
        result = function(rank, *args)
        dist.barrier()
        sender.send_bytes(pickle.dumps(Outcome(result=result)))
        dist.destroy_process_group()
    except BaseException:
        sender.send_bytes(pickle.dumps(Outcome(error=traceback.format_exc())))
        sender.close()
        os._exit(1)


def _collect(receivers: list[Connection], deadline: float) -> list[Outcome]:
    outcomes = [Outcome(died=True) for _ in receivers]
    waiting = {receiver: rank for rank, receiver in enumerate(receivers)}
    while waiting and (left := deadline - time.monotonic()) > 0:
        for receiver in wait(list(waiting), timeout=left):
            rank = waiting.pop(receiver)  # pyright: ignore[reportArgumentType]
            try:
                outcomes[rank] = pickle.loads(receiver.recv_bytes())  # pyright: ignore[reportAttributeAccessIssue]
            except EOFError:
                outcomes[rank] = Outcome(died=True)
            if not outcomes[rank].ok:
                deadline = min(deadline, time.monotonic() + GRACE_S)
    return outcomes


def _end(processes: list[BaseProcess]) -> None:
    for process in processes:
        process.join(timeout=1)
        if process.is_alive():
            process.kill()
            process.join()
