"""Sums gradients of which several ranks hold terms, and clips by norm.

Parameters that every data-parallel rank holds whole are summed over ``dp``. ZeRO stage 0 holds all
so; in the sharded stages FSDP2 reduces the gradients itself, and only parameters that it cannot
split are left. Parameters that several pipeline stages read (tied weights) are then summed over the
ranks of these stages, so that each steps its copy alike. Terms of all microbatches add up in
``.grad`` and are summed once, in buckets. Gradients that were there before the step (the user
accumulates over several steps) are already summed, and are set aside meanwhile.

Buckets are filled as gradients arrive, the last layers' first. In the last backward of a step the
sum of a bucket starts when the last of its gradients has arrived, and goes on beside the backward,
as in PyTorch's DDP; sums start in the same order on all ranks, whatever arrives first. DDP itself
is not used: it averages, and knows neither tensor parallelism nor gradients set aside.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autoplan.capabilities import bucket_bytes
from autoplan.runtime.buckets import Bucket, buckets_of
from autoplan.runtime.layout import ParameterLayout
from autoplan.runtime.mesh import RankMesh
from autoplan.runtime.weights import local


class GradientSum:
    """The once-a-step sums of gradients: over ``dp``, and over the stages that share a parameter.

    Args:
        whole: parameters that every data-parallel rank holds whole.
        shared: groups of ranks whose stages read the same parameters, with these parameters, in the
            same order on all of them.
        overlaps: whether sums over ``dp`` start in the last backward.
    """

    def __init__(
        self,
        whole: Iterable[nn.Parameter],
        mesh: RankMesh,
        shared: Sequence[tuple[dist.ProcessGroup, Sequence[nn.Parameter]]] = (),
        *,
        overlaps: bool,
    ) -> None:
        trained = [p for p in whole if p.requires_grad] if mesh.dp > 1 else []
        self._group = mesh.group("dp")
        self._buckets = _buckets(reversed(trained))
        self._shared = [
            (group, _buckets(p for p in found if p.requires_grad)) for group, found in shared
        ]
        every = [p for _, found in self._shared for bucket in found for p in bucket.parameters]
        self._parameters = list(dict.fromkeys((*trained, *every)))
        self._overlaps = overlaps
        self._aside: list[Tensor | None] | None = None
        self._awaited: list[set[int]] | None = None
        self._started = 0
        self._hear_of_gradients()

    @property
    def is_open(self) -> bool:
        return self._aside is not None

    @property
    def has_terms(self) -> bool:
        """Whether a backward left a gradient of this step in any parameter, if there are any."""
        return not self._parameters or any(p.grad is not None for p in self._parameters)

    def open(self) -> None:
        """Sets earlier gradients aside: what comes into ``.grad`` now are this rank's terms."""
        self._aside = [p.grad for p in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None

    def begin_last(self) -> None:
        """The next backward is the last of the step: a gradient that it leaves is complete."""
        if self._overlaps:
            self._awaited = [set(range(len(bucket.parameters))) for bucket in self._buckets]

    def close(self) -> None:
        """Sums the terms and adds what was set aside."""
        assert self._aside is not None
        self._awaited = None
        self._start(len(self._buckets))
        for bucket in self._buckets:
            bucket.finish()
        self._started = 0
        for group, buckets in self._shared:
            _sum_shared(buckets, group)
        for parameter, earlier in zip(self._parameters, self._aside, strict=True):
            if earlier is None:
                continue
            if parameter.grad is None:
                parameter.grad = earlier
            else:
                parameter.grad += earlier
        self._aside = None

    def _hear_of_gradients(self) -> None:
        """Autograd tells of every gradient, as long as there is something to tell it to."""
        own = weakref.ref(self)
        for number, bucket in enumerate(self._buckets):
            for index, parameter in enumerate(bucket.parameters):

                def tell(_: Tensor, number: int = number, index: int = index) -> None:
                    sums = own()
                    if sums is not None:
                        sums._arrived(number, index)

                parameter.register_post_accumulate_grad_hook(tell)

    def _arrived(self, number: int, index: int) -> None:
        if self._aside is None:
            return
        if number < self._started:
            raise RuntimeError("a gradient arrived behind the start of its sum over the ranks")
        self._buckets[number].take(index)
        awaited = self._awaited
        if awaited is None:
            return
        awaited[number].discard(index)
        if number == self._started and not awaited[number]:
            ready = takewhile(lambda left: not left, awaited[number:])
            self._start(number + len(list(ready)))

    def _start(self, end: int) -> None:
        """Starts the sums of buckets up to ``end``."""
        for bucket in self._buckets[self._started : end]:
            bucket.start(self._group)
        self._started = max(self._started, end)


def _sum_shared(buckets: Sequence[Bucket], group: dist.ProcessGroup) -> None:
    """Sums over the stages that share parameters, of which not all need leave a gradient."""
    for bucket in buckets:
        for parameter in bucket.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        bucket.start(group)
    for bucket in buckets:
        bucket.finish()


def _buckets(parameters: Iterable[nn.Parameter]) -> list[Bucket]:
    held = list(parameters)
    return list(buckets_of(held, bucket_bytes(sum(local(p).nbytes for p in held))))


def gradient_norm(
    parameters: Mapping[str, nn.Parameter],
    layouts: Mapping[str, ParameterLayout],
    mesh: RankMesh,
) -> Tensor:
    """The 2-norm of all gradients as one vector, each element counted once, on every rank."""
    total = torch.zeros((), dtype=torch.float64, device=mesh.device)
    for name, parameter in parameters.items():
        if parameter.grad is not None and layouts[name].is_first_copy(mesh):
            piece = local(parameter.grad)
            total += torch.linalg.vector_norm(piece, dtype=_accumulation(piece)).double() ** 2
    return mesh.sum_over_world(total).sqrt()


def scale_gradients(parameters: Iterable[nn.Parameter], factor: Tensor) -> None:
    """Multiplies every gradient in place."""
    for parameter in parameters:
        if parameter.grad is not None:
            grad = local(parameter.grad)
            grad.mul_(factor.to(grad.dtype))


def _accumulation(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
