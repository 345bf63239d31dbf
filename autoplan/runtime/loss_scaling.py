"""Loss scaling over ranks: an overflow on one rank is one on all.

``torch.amp.GradScaler`` looks at the gradients of its own process. So every rank tells the others
whether one of its gradients is infinite or NaN, and where any is, each puts infinity into a
gradient of its own: all skip the step, and all lower the scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from autoplan.errors import PlanError
from autoplan.runtime.mesh import RankMesh
from autoplan.runtime.weights import local


def share_overflow(parameters: Iterable[nn.Parameter], mesh: RankMesh) -> None:
    """Makes the gradients of every rank infinite somewhere if those of any rank are.

    Nothing is read back from the device.
    """
    pieces = [local(p.grad) for p in parameters if p.grad is not None]
    pieces = [piece for piece in pieces if piece.numel()]
    total = torch.zeros((), device=mesh.device)
    for piece in pieces:
        total += torch.linalg.vector_norm(piece, ord=math.inf).isfinite().logical_not()
    mesh.sum_over_world(total)
    if pieces:
        first = pieces[0].view(-1)[:1] if pieces[0].is_contiguous() else pieces[0]
        first.add_(torch.where(total > 0, math.inf, 0.0).to(first.dtype))


def check_scalable(parameters: Mapping[str, nn.Parameter]) -> None:
    """Refuses what ``GradScaler`` cannot unscale together.

    Raises:
        PlanError: some parameters of this rank are split and others whole.
    """
    trainable = {name: p for name, p in parameters.items() if p.requires_grad}
    plain = [name for name, p in trainable.items() if not isinstance(p, DTensor)]
    if plain and len(plain) < len(trainable):
        raise PlanError(
            f"{plain[0]} is whole on every rank and other parameters are split, which "
            "torch.amp.GradScaler cannot unscale together: plan with zero=0, or in bf16"
        )
