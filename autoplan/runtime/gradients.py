"""Sums the gradients of parameters that every data-parallel rank holds whole, and clips by norm.

ZeRO stage 0 holds all parameters so; in the sharded stages FSDP2 reduces the gradients itself, and
only parameters that it cannot split are left. Terms of all microbatches add up in ``.grad`` and
are summed over ``dp`` once, in buckets. Gradients that were there before the step (the user
accumulates over several steps) are already summed, and are set aside meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from autoplan.capabilities import BUCKET_BYTES
from autoplan.runtime.layout import ParameterLayout
from autoplan.runtime.mesh import RankMesh
from autoplan.runtime.weights import local


class GradientSum:
    """The once-a-step sum over ``dp`` of the gradients of ``parameters``."""

    def __init__(self, parameters: Iterable[nn.Parameter], mesh: RankMesh) -> None:
        self._parameters = [p for p in parameters if p.requires_grad] if mesh.dp > 1 else []
        self._mesh = mesh
        self._aside: list[Tensor | None] | None = None

    @property
    def is_open(self) -> bool:
        return self._aside is not None

    def open(self) -> None:
        """Sets earlier gradients aside: what comes into ``.grad`` now are this rank's terms."""
        self._aside = [p.grad for p in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None

    def close(self) -> None:
        """Sums the terms over ``dp`` and adds what was set aside."""
        assert self._aside is not None
        terms = [local(p.grad) for p in self._parameters if p.grad is not None]
        for bucket in _buckets(terms):
            _sum_bucket(bucket, self._mesh)
        for parameter, earlier in zip(self._parameters, self._aside, strict=True):
            if earlier is None:
                continue
            if parameter.grad is None:
                parameter.grad = earlier
            else:
                parameter.grad += earlier
        self._aside = None


def _buckets(terms: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    nbytes = 0
    for term in terms:
        if bucket and (nbytes + term.nbytes > BUCKET_BYTES or bucket[0].dtype != term.dtype):
            yield bucket
            bucket, nbytes = [], 0
        bucket.append(term)
        nbytes += term.nbytes
    if bucket:
        yield bucket


def _sum_bucket(bucket: list[Tensor], mesh: RankMesh) -> None:
    if len(bucket) == 1 and bucket[0].is_contiguous():
        mesh.sum_over_dp(bucket[0])
        return
    flat = mesh.sum_over_dp(torch.cat([term.reshape(-1) for term in bucket]))
    for term, summed in zip(bucket, flat.split([t.numel() for t in bucket]), strict=True):
        term.copy_(summed.view(term.shape))


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
