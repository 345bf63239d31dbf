"""Runs the stages of a pipeline forward, for evaluation.

Microbatches go in groups of as many as there are ranks, each group through all stages in turn, so
that a rank with several stages is busy with one while the others run the next. What torch adds to
schedules of training orders the messages, so that no rank waits for one that another has not sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.codegen.emitted import Emitted
from autoplan.runtime.mesh import RankMesh
from autoplan.runtime.torch_private import PipelineAction, PipelineActionKind, add_messages

Tensors = tuple[Tensor, ...]
Run = Callable[[int, Tensors, int], Tensors]
"""What a stage makes of what it received, for a microbatch."""


def run_forward(emitted: Emitted, run: Run, microbatches: int, mesh: RankMesh) -> list[Tensors]:
    """What the last stage makes of each microbatch; nothing on ranks that do not run it.

    Args:
        run: runs a stage of this rank.
    """
    rank_of = [stage.rank for stage in emitted.stages]
    messages = _Messages(emitted, rank_of, mesh)
    results: list[Tensors] = []
    for action in forward_actions(rank_of, microbatches)[mesh.pp_rank]:
        stage, microbatch, kind = (
            action.stage_index,
            action.microbatch_index,
            action.computation_type,
        )
        if kind == PipelineActionKind.RECV_F:
            messages.receive(stage, microbatch)
        elif kind == PipelineActionKind.SEND_F:
            messages.send(stage, microbatch)
        else:
            made = run(stage, messages.received(stage, microbatch), microbatch)
            if stage == len(rank_of) - 1:
                results.append(made)
            else:
                messages.made(stage, microbatch, made)
    messages.finish()
    return results


def forward_actions(rank_of: Sequence[int], microbatches: int) -> Mapping[int, list[Any]]:
    """The forwards and messages of every rank, in order.

    Args:
        rank_of: the rank of every stage.
    """
    ranks = max(rank_of) + 1
    own: dict[int, list[Any]] = {rank: [] for rank in range(ranks)}
    for first in range(0, microbatches, ranks):
        for stage, rank in enumerate(rank_of):
            own[rank] += [
                PipelineAction(stage, PipelineActionKind.FORWARD, microbatch)
                for microbatch in range(first, min(first + ranks, microbatches))
            ]
    return add_messages(own, rank_of.__getitem__, len(rank_of))


class _Messages:
    """What this rank has sent and awaits, by stage and microbatch."""

    def __init__(self, emitted: Emitted, rank_of: Sequence[int], mesh: RankMesh) -> None:
        self._emitted, self._rank_of, self._mesh = emitted, rank_of, mesh
        self._arriving: dict[tuple[int, int], tuple[Tensors, list[Any]]] = {}
        self._made: dict[tuple[int, int], Tensors] = {}
        self._sending: list[tuple[Tensors, list[Any]]] = []

    def receive(self, stage: int, microbatch: int) -> None:
        """Takes memory for what a stage receives, and awaits it."""
        tensors = tuple(
            torch.empty(each.shape, dtype=getattr(torch, each.dtype), device=self._mesh.device)
            for each in self._emitted.stages[stage].receives
        )
        works = self._start(dist.irecv, tensors, self._rank_of[stage - 1])
        self._arriving[stage, microbatch] = tensors, works

    def received(self, stage: int, microbatch: int) -> Tensors:
        """What a stage receives, from another rank or from this one."""
        if stage == 0:
            return ()
        if self._rank_of[stage - 1] == self._mesh.pp_rank:
            return self._made.pop((stage - 1, microbatch))
        tensors, works = self._arriving.pop((stage, microbatch))
        for work in works:
            work.wait()
        return tensors

    def made(self, stage: int, microbatch: int, tensors: Tensors) -> None:
        """Keeps what a stage made until it is sent or read."""
        self._made[stage, microbatch] = tuple(tensor.contiguous() for tensor in tensors)

    def send(self, stage: int, microbatch: int) -> None:
        """Starts to send what a stage made."""
        self._sending = [
            each for each in self._sending if not all(work.is_completed() for work in each[1])
        ]
        tensors = self._made.pop((stage, microbatch))
        works = self._start(dist.isend, tensors, self._rank_of[stage + 1])
        self._sending.append((tensors, works))

    def finish(self) -> None:
        """Waits until all is sent."""
        for _, works in self._sending:
            for work in works:
                work.wait()

    def _start(self, way: Callable[..., Any], tensors: Tensors, pp_rank: int) -> list[Any]:
        peer, group = self._mesh.rank_at(pp_rank), self._mesh.group("pp")
        operations = [dist.P2POp(way, tensor, peer, group) for tensor in tensors]
        return dist.batch_isend_irecv(operations) if operations else []
