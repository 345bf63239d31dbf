"""Sums gradients of which several ranks hold terms, and clips by norm.

Parameters that every data-parallel rank holds whole are summed over ``dp``. ZeRO stage 0 holds all
so; in the sharded stages FSDP2 reduces the gradients itself, and only parameters that it cannot
split are left. Parameters that several pipeline stages read (tied weights) are then summed over the
ranks of these stages, so that each steps its copy alike. Terms of all microbatches add up in
``.grad`` and are summed once, in buckets. Gradients that were there before the step (the user
accumulates over several steps) are already summed, and are set aside meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from autoplan.capabilities import BUCKET_BYTES
from autoplan.runtime.layout import ParameterLayout
from autoplan.runtime.mesh import RankMesh
from autoplan.runtime.weights import local


class GradientSum:
    """The once-a-step sums of gradients: over ``dp``, and over the stages that share a parameter.

    Args:
        whole: parameters that every data-parallel rank holds whole.
        shared: groups of ranks whose stages read the same parameters, with these parameters, in the
            same order on all of them.
    """

    def __init__(
        self,
        whole: Iterable[nn.Parameter],
        mesh: RankMesh,
        shared: Sequence[tuple[dist.ProcessGroup, Sequence[nn.Parameter]]] = (),
    ) -> None:
        self._whole = [p for p in whole if p.requires_grad] if mesh.dp > 1 else []
        self._shared = [(group, [p for p in found if p.requires_grad]) for group, found in shared]
        every = (*self._whole, *(p for _, found in self._shared for p in found))
        self._parameters = list(dict.fromkeys(every))
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
        """Sums the terms and adds what was set aside."""
        assert self._aside is not None
        _sum((p for p in self._whole if p.grad is not None), self._mesh.group("dp"))
        for group, parameters in self._shared:
            for parameter in parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            _sum(parameters, group)
        for parameter, earlier in zip(self._parameters, self._aside, strict=True):
            if earlier is None:
                continue
            if parameter.grad is None:
                parameter.grad = earlier
            else:
                parameter.grad += earlier
        self._aside = None


def _sum(parameters: Iterable[nn.Parameter], group: dist.ProcessGroup | None) -> None:
    """Sums gradients over the ranks of a group, bucket by bucket.

    The gradients of a bucket become views of it, so that nothing is copied back, and a bucket is
    filled while those before it are under way.
    """
    works = []
    for bucket in _buckets(p for p in parameters if p.grad is not None):
        terms = [_term(parameter) for parameter in bucket]
        if len(terms) == 1 and terms[0].is_contiguous():
            flat = terms[0]
        else:
            flat = torch.cat([term.reshape(-1) for term in terms])
            views = flat.split([term.numel() for term in terms])
            for parameter, term, view in zip(bucket, terms, views, strict=True):
                _replace_gradient(parameter, view.view(term.shape))
        works.append(dist.all_reduce(flat, group=group, async_op=True))
    for work in works:
        assert work is not None
        work.wait()


def _term(parameter: nn.Parameter) -> Tensor:
    """This rank's piece of a gradient."""
    assert parameter.grad is not None
    return local(parameter.grad)


def _replace_gradient(parameter: nn.Parameter, piece: Tensor) -> None:
    """Gives a parameter other memory for this rank's piece of its gradient."""
    grad = parameter.grad
    if isinstance(grad, DTensor):
        piece = DTensor.from_local(
            piece,
            grad.device_mesh,
            grad.placements,
            run_check=False,
            shape=grad.shape,
            stride=grad.stride(),
        )
    parameter.grad = piece


def _buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Runs of parameters whose gradients are summed together."""
    bucket: list[nn.Parameter] = []
    nbytes, dtype = 0, None
    for parameter in parameters:
        term = _term(parameter)
        if bucket and (nbytes + term.nbytes > BUCKET_BYTES or dtype != term.dtype):
            yield bucket
            bucket, nbytes = [], 0
        bucket.append(parameter)
        nbytes, dtype = nbytes + term.nbytes, term.dtype
    if bucket:
        yield bucket


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
