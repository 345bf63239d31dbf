"""Gradients that are summed over ranks by one message, in one piece of memory.

The gradient of each parameter moves into the bucket when it first arrives and becomes a view of it:
later microbatches add to it there, and the sum needs no copies. A gradient that is a bucket alone
stays where autograd left it. Memory of the host is kept for the next step, since its pages would be
handed out anew; allocators of accelerators keep theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from autoplan.runtime.torch_private import is_held_once
from autoplan.runtime.weights import local


class Bucket:
    """Parameters of one dtype whose gradients are summed together.

    Attributes:
        parameters: in the order of their places.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = tuple(parameters)
        self._shapes = [local(parameter).shape for parameter in parameters]
        self._is_alone = len(self.parameters) == 1
        self._flat: Tensor | None = None
        self._kept: Tensor | None = None
        self._places: list[Tensor] = []
        self._moved: dict[int, Tensor] = {}
        self._work: dist.Work | None = None

    def take(self, index: int) -> None:
        """Moves the gradient of a parameter here, unless it is here."""
        parameter = self.parameters[index]
        grad = parameter.grad
        if self._is_alone or grad is None or grad is self._moved.get(index):
            return
        if self._flat is None:
            self._flat = self._memory(grad)
        place = self._places[index]
        place.copy_(local(grad))
        self._moved[index] = parameter.grad = _like(grad, place)

    def start(self, group: dist.ProcessGroup | None) -> None:
        """Starts the sum of what gradients there are; every rank must have the same ones."""
        for index in range(len(self.parameters)):
            self.take(index)
        for index in set(range(len(self._places))).difference(self._moved):
            self._places[index].zero_()
        flat = self._alone() if self._is_alone else self._flat
        if flat is not None:
            self._work = dist.all_reduce(flat, group=group, async_op=True)

    def finish(self) -> None:
        """Waits for the sum."""
        if self._work is not None:
            self._work.wait()
        if self._flat is not None and self._flat.device.type == "cpu":
            self._kept = self._flat
        self._work, self._flat, self._places, self._moved = None, None, [], {}

    def _memory(self, grad: Tensor) -> Tensor:
        """Takes the memory of the bucket, and its places; kept memory if its gradients are gone."""
        sizes = [shape.numel() for shape in self._shapes]
        with torch.no_grad():
            if self._kept is not None and is_held_once(self._kept):
                flat = self._kept
            else:
                flat = local(grad).new_empty(sum(sizes))
            self._kept = None
            parts = flat.split(sizes)
            self._places = [p.view(shape) for p, shape in zip(parts, self._shapes, strict=True)]
        return flat

    def _alone(self) -> Tensor | None:
        """The only gradient, where nothing else of the backward reads its memory."""
        parameter = self.parameters[0]
        if parameter.grad is None:
            return None
        piece = local(parameter.grad)
        if not piece.is_contiguous() or not is_held_once(piece):
            piece = piece.clone(memory_format=torch.contiguous_format)
            parameter.grad = _like(parameter.grad, piece)
        return piece


def buckets_of(parameters: Iterable[nn.Parameter], most_bytes: float) -> Iterator[Bucket]:
    """Runs of parameters of at most so many bytes each, or one parameter."""
    run: list[nn.Parameter] = []
    nbytes = 0
    for parameter in parameters:
        own_bytes = local(parameter).nbytes
        if run and (nbytes + own_bytes > most_bytes or run[-1].dtype != parameter.dtype):
            yield Bucket(run)
            run, nbytes = [], 0
        run.append(parameter)
        nbytes += own_bytes
    if run:
        yield Bucket(run)


def _like(gradient: Tensor, piece: Tensor) -> Tensor:
    """The gradient with other memory for this rank's piece of it."""
    if not isinstance(gradient, DTensor):
        return piece
    return DTensor.from_local(
        piece,
        gradient.device_mesh,
        gradient.placements,
        run_check=False,
        shape=gradient.shape,
        stride=gradient.stride(),
    )
