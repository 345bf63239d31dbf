"""A pipeline stage as ``torch.distributed.pipelining`` runs it, whose shapes are known beforehand.

Shapes of what crosses between stages come from the program, so that nothing is run to find them
out. Memory for what arrives is taken when its message is awaited and let go behind the backward;
torch would keep it for every microbatch of the step. What is sent is let go once it is sent, unless
autograd keeps it: stand-ins without values take its place as the roots of the backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage

from autoplan.codegen.program import Boundary
from autoplan.runtime.engines import Microbatch
from autoplan.runtime.mesh import RankMesh
from autoplan.runtime.stages import Inputs, LocalStage
from cost_models.schedules import PipelineShape


@dataclass(frozen=True, slots=True)
class Fed:
    """A microbatch, and the counts by number of the stage."""

    microbatch: Microbatch
    counts: dict[int, Inputs]


class StaticStage(PipelineStage):
    """A stage that takes its own inputs from a microbatch, and sends contiguous tensors."""

    def __init__(self, stage: LocalStage, shape: PipelineShape, mesh: RankMesh) -> None:
        super().__init__(
            stage.program,
            stage.index,
            shape.stages,
            mesh.device,
            input_args=_metas(stage.emitted.receives),
            output_args=_metas(stage.emitted.sends),
            group=mesh.group("pp"),
        )
        self._local = stage
        self._splits_backward = shape.splits_backward
        self._outgoing: dict[int, Inputs] = {}

    def forward_maybe_with_nosync(self, *args: Tensor, **kwargs: Any) -> Any:
        fed: Fed = kwargs["fed"]
        own, counts = fed.microbatch, fed.counts[self.stage_index]
        found = self._local.forward(args, own.inputs, counts, own.draws)
        if self.is_last:  # where torch splits the backward it detaches the loss in place
            return found.clone() if self._splits_backward else found
        return tuple(t.contiguous() for t in (found if isinstance(found, tuple) else (found,)))

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        if self.is_last:
            return output
        _, received = self.fwd_cache[fwd_chunk_id]
        self.fwd_cache[fwd_chunk_id] = tuple(StandIn.apply(t) for t in output), received
        sent = tuple(tensor.detach() for tensor in output)
        if self.stage_index_to_group_rank[self.stage_index + 1] != self.group_rank:
            self._outgoing[fwd_chunk_id] = sent
        return sent

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        peer = self._resolve_peer_global_rank(self.stage_index + 1)
        sent = self._outgoing.pop(fwd_chunk_id)
        return [dist.P2POp(dist.isend, tensor, peer, self.group) for tensor in sent]

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        found = self.bwd_cache[bwd_chunk_id]
        self.bwd_cache[bwd_chunk_id] = tuple(g if g is None else g.contiguous() for g in found)
        _let_go(self.args_recv_info[bwd_chunk_id])
        _let_go(self.grad_recv_info[bwd_chunk_id])

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> Any:
        self._take_memory(self.args_recv_info[fwd_chunk_id])
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> Any:
        if self.has_backward and not self.is_last:
            self._take_memory(self.grad_recv_info[bwd_chunk_id])
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def set_local_bwd_input(
        self, next_stage_bwd_outputs: tuple[Tensor | None, ...], mb_index: int
    ) -> None:
        self._take_memory(self.grad_recv_info[mb_index])
        super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)

    def _setup_forward_recv_info(self, *args: Any, **kwargs: Any) -> None:
        with self._without_memory():
            super()._setup_forward_recv_info(*args, **kwargs)

    def _setup_backward_recv_info(self, *args: Any, **kwargs: Any) -> None:
        with self._without_memory():
            super()._setup_backward_recv_info(*args, **kwargs)

    def _post_metadata_inference_cleanup(self) -> None:
        """Nothing was run to infer shapes; torch would drop the gradients of earlier steps here."""

    @contextmanager
    def _without_memory(self) -> Iterator[None]:
        """Buffers that torch makes meanwhile take no memory."""
        device, self.device = self.device, torch.device("meta")
        try:
            yield
        finally:
            self.device = device

    def _take_memory(self, infos: Sequence[Any]) -> None:
        for info in infos:
            if info.buffer is not None and info.buffer.is_meta:
                info.buffer = torch.empty(
                    info.buffer.shape, dtype=info.buffer.dtype, device=self.device
                )


class StandIn(torch.autograd.Function):
    """A tensor of the same shape without values, whose gradient is that of the original."""

    @staticmethod
    def forward(ctx: Any, original: Tensor) -> Tensor:
        storage = original.new_empty(1).untyped_storage()
        return original.new_empty(0).set_(storage, 0, original.shape, (0,) * original.dim())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def _let_go(infos: Sequence[Any]) -> None:
    for info in infos:
        if info.buffer is not None:
            info.buffer = torch.empty_like(info.buffer, device="meta")


def _metas(boundaries: Sequence[Boundary]) -> tuple[Tensor, ...]:
    return tuple(
        torch.empty(
            boundary.shape,
            dtype=getattr(torch, boundary.dtype),
            device="meta",
            requires_grad=boundary.requires_grad,
        )
        for boundary in boundaries
    )
