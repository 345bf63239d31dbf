"""The standard recipes in PyTorch's own words, as their tutorials write them.

Each takes the sizes of its mesh and returns a `Training`: forward and backward on this rank's part
of the global batch, then the loss of the global batch. Optimizers are the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from benchmarks.step_time.model import GPT, Batch, Stage, batch, build, mean_loss

MICROBATCHES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A way to parallelise: ZeRO stage 0 of ``dp`` is DDP, 3 is FSDP2."""

    name: str
    pp: int = 1
    dp: int = 1
    tp: int = 1
    zero: int = 0

    @property
    def ranks(self) -> int:
        return self.pp * self.dp * self.tp

    @property
    def microbatches(self) -> int:
        """Of each data-parallel rank."""
        return MICROBATCHES if self.pp > 1 else 1


RECIPES = (
    Recipe(name="DDP", dp=2),
    Recipe(name="FSDP2", dp=2, zero=3),
    Recipe(name="TP", tp=2),
    Recipe(name="1F1B", pp=2),
    Recipe(name="DDP", dp=4),
    Recipe(name="FSDP2", dp=4, zero=3),
    Recipe(name="TP", tp=4),
    Recipe(name="FSDP2 x TP", dp=2, tp=2, zero=3),
    Recipe(name="1F1B", pp=4),
    Recipe(name="1F1B x FSDP2 x TP", pp=2, dp=2, tp=2, zero=3),
)


@dataclass(frozen=True, slots=True)
class Training:
    """What one contestant trains: the parameters of its optimizer, and forward with backward."""

    parameters: Iterable[nn.Parameter]
    step: Callable[[], Tensor]


def by_hand(recipe: Recipe) -> Training:
    """This rank's part of a recipe, on a fresh model."""
    mesh = init_device_mesh(
        "cpu", (recipe.pp, recipe.dp, recipe.tp), mesh_dim_names=("pp", "dp", "tp")
    )
    fed = {
        name: value.chunk(recipe.dp)[mesh.get_local_rank("dp")] for name, value in batch().items()
    }
    if recipe.pp > 1:
        return _in_pipeline(recipe, mesh, fed)
    whole = build()
    _split(whole, recipe, mesh)
    model: nn.Module = whole
    if recipe.dp > 1 and not recipe.zero:
        model = DistributedDataParallel(
            model, process_group=mesh.get_group("dp"), gradient_as_bucket_view=True
        )

    def step() -> Tensor:
        if recipe.tp == 1:
            loss = model(**fed)
            loss.backward()
        else:
            with loss_parallel():
                loss = model(**fed)
                loss.backward()
        return _averaged(loss.detach(), mesh, recipe)

    return Training(model.parameters(), step)


def _in_pipeline(recipe: Recipe, mesh: DeviceMesh, fed: Batch) -> Training:
    rank = mesh.get_local_rank("pp")
    part = Stage(build(), rank, recipe.pp)
    _split(part, recipe, mesh)
    stage = PipelineStage(part, rank, recipe.pp, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, recipe.microbatches, loss_fn=mean_loss)

    def run() -> Tensor:
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(fed["ids"], return_outputs=False)
        elif rank == recipe.pp - 1:
            schedule.step(target=fed["labels"], losses=losses, return_outputs=False)
        else:
            schedule.step(return_outputs=False)
        return torch.stack(losses).mean().detach() if losses else torch.zeros(())

    def step() -> Tensor:
        if recipe.tp == 1:
            total = run()
        else:
            with loss_parallel():
                total = run()
        total = _local(total)
        dist.all_reduce(total, group=mesh.get_group("pp"))
        return _averaged(total, mesh, recipe)

    return Training(part.parameters(), step)


def _split(model: GPT | Stage, recipe: Recipe, mesh: DeviceMesh) -> None:
    """Tensor parallelism by layer, then FSDP2 by layer."""
    if recipe.tp > 1:
        _split_layers(model, mesh["tp"])
    if recipe.zero:
        keeps = recipe.pp > 1
        for layer in model.layers:
            fully_shard(layer, mesh=mesh["dp"], reshard_after_forward=not keeps)
        fully_shard(model, mesh=mesh["dp"], reshard_after_forward=not keeps)


def _split_layers(model: GPT | Stage, tp: DeviceMesh) -> None:
    styles: dict[str, ParallelStyle] = {
        "attention.o": RowwiseParallel(),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
    }
    styles |= {f"attention.{name}": ColwiseParallel() for name in "qkv"}
    for layer in model.layers:
        parallelize_module(layer, tp, styles)
    if hasattr(model, "tokens"):
        parallelize_module(model.tokens, tp, RowwiseParallel(input_layouts=Replicate()))
    if hasattr(model, "head"):
        parallelize_module(model.head, tp, ColwiseParallel(use_local_output=False))


def _averaged(loss: Tensor, mesh: DeviceMesh, recipe: Recipe) -> Tensor:
    """The mean over the data-parallel ranks."""
    loss = _local(loss)
    if recipe.dp > 1:
        dist.all_reduce(loss, group=mesh.get_group("dp"))
    return loss / recipe.dp


def _local(loss: Tensor) -> Tensor:
    return loss.full_tensor() if isinstance(loss, DTensor) else loss
