"""A small model and the module that codegen would emit for it, both written by hand.

They let the runtime be tested alone: ``Net`` on one device is the truth, ``emitted_net`` with
``build_net`` the sharded program, whose ``up`` is split by columns and ``down`` by rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from autoplan.codegen.emitted import BatchInput, Count, Emitted, EmittedStage, StoredTensor
from autoplan.job import Precision
from autoplan.plan import Plan
from autoplan.runtime import parallelize as parallelize_module
from autoplan.runtime import stages
from autoplan.runtime.collectives import all_reduce__identity, arrived, identity__all_reduce
from autoplan.runtime.module import ParallelModule
from autoplan.sharding.placement import Placement, Replicate, Shard
from autoplan.trace.graph import OpGraph, OpNode, Ref, TensorMeta
from tests.distributed.plans import make_plan

WIDTH, CLASSES, BLOCKS = 8, 5, 2
IGNORED = -100
BATCH = 16


class NetBlock(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(x)))


class Net(nn.Module):
    """Classifies rows; the loss is the mean over the rows whose label counts."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("shift", torch.full((WIDTH,), 0.1))
        self.blocks = nn.ModuleList(NetBlock(WIDTH, hidden) for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = x * self.scale + self.shift
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x), labels, ignore_index=IGNORED)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class _Holder(nn.Module):
    """Parameters by name."""


class _Block(nn.Module):
    def __init__(self, tp) -> None:
        super().__init__()
        self.tp = tp
        self.up, self.down = _Holder(), _Holder()

    def forward(self, x: Tensor) -> Tensor:
        read = identity__all_reduce(x, self.tp)
        hidden = F.gelu(F.linear(read, _local(self.up.weight), _local(self.up.bias)))
        term = F.linear(hidden, _local(self.down.weight))
        return x + (all_reduce__identity(term, self.tp) + _local(self.down.bias))


class _Root(nn.Module):
    def __init__(self, tp) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block(tp) for _ in range(BLOCKS))
        self.head = _Holder()

    def count(self, x: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        return ((labels != IGNORED).sum(),)

    def forward(self, x: Tensor, labels: Tensor, counts: tuple[Tensor, ...]) -> Tensor:
        x = x * _local(self.scale) + _local(self.shift)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(x, _local(self.head.weight), _local(self.head.bias))
        total = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
        (count,) = arrived(counts)
        return total / count.clamp(min=1)


def build_net(emitted: Emitted, stage: EmittedStage, parameter, buffer, axes, *, aten) -> nn.Module:
    root = _Root(axes["tp"])
    for name in emitted.parameters:
        owner, _, leaf = name.rpartition(".")
        root.get_submodule(owner).register_parameter(leaf, parameter(name))
    root.register_buffer("shift", buffer("shift"))
    return root


def net_graph() -> OpGraph:
    """Just enough of a graph for ``parallelize``: a fingerprint and one call without a mode."""
    call = OpNode(
        name="loss", kind="call", target="aten.sum.default", outputs=(_meta(torch.zeros(())),)
    )
    return OpGraph(nodes=(call,), blocks=(), output=Ref("loss"), batch=8, fingerprint="net")


def emitted_net(model: nn.Module, plan: Plan) -> Emitted:
    dtype = torch.bfloat16 if plan.job.precision == "bf16" else None
    x = TensorMeta(
        shape=(plan.job.global_batch, WIDTH),
        dtype=_meta(torch.zeros((), dtype=dtype or model.head.weight.dtype)).dtype,
        batch_dims=(0,),
    )
    labels = TensorMeta(shape=(plan.job.global_batch,), dtype="int64", batch_dims=(0,))
    return Emitted(
        source="# by hand",
        stages=(
            EmittedStage(
                root_class="_Root",
                rank=0,
                block_classes={f"blocks.{i}": "_Block" for i in range(BLOCKS)},
                unit_paths=tuple(f"blocks.{i}" for i in range(BLOCKS)),
                parameters=tuple(name for name, _ in model.named_parameters()),
                buffers=("shift",),
                inputs=(0, 1),
            ),
        ),
        parameters={
            name: StoredTensor(meta=_meta(value.to(dtype)), placement=_placement(name))
            for name, value in model.named_parameters()
        },
        buffers={"shift": StoredTensor(meta=_meta(model.shift.to(dtype)), placement=Replicate())},
        inputs=(
            BatchInput(target="x", meta=x),
            BatchInput(target="labels", meta=labels),
        ),
        counts=(Count(node="count", meta=TensorMeta(shape=(), dtype="int64")),),
        loss_dtype=x.dtype,
        dp=plan.mesh.dp,
        num_microbatches=plan.num_microbatches,
        tp=plan.mesh.tp,
    )


def _placement(name: str) -> Placement:
    if ".up." in name:
        return Shard(0)
    return Shard(1) if name.endswith("down.weight") else Replicate()


def _meta(tensor: Tensor) -> TensorMeta:
    return TensorMeta(shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))


def net_batch(rows: int, dtype: torch.dtype, seed: int = 0) -> dict[str, Tensor]:
    """Inputs of which some labels are ignored, in unequal number in each part."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(0, CLASSES, (rows,), generator=generator)
    labels[:3] = IGNORED
    labels[-1] = IGNORED
    return {"x": x, "labels": labels}


@dataclass(frozen=True)
class Cell:
    """One way to train ``Net``."""

    dp: int = 1
    tp: int = 1
    zero: int = 0
    num_microbatches: int = 1
    dtype: torch.dtype = torch.float64
    hidden: int = 16
    optimizer: str = "adamw"
    precision: Precision = "fp32"
    replicas: int = 1


def make_net(cell: Cell, seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net(cell.hidden).to(cell.dtype)


def parallel_net(cell: Cell, seed: int = 0, frozen: tuple[str, ...] = ()) -> ParallelModule:
    """``Net`` in parallel; ranks other than 0 start from other weights, which must not count."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    model = make_net(cell, seed + 100 * rank)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen) if frozen else True)
    plan = make_plan(
        "net",
        global_batch=BATCH,
        dp=cell.dp,
        tp=cell.tp,
        zero=cell.zero,
        num_microbatches=cell.num_microbatches,
        precision=cell.precision,
        replicas=cell.replicas,
    )
    with (
        mock.patch.object(
            parallelize_module, "emit_program", return_value=emitted_net(model, plan)
        ),
        mock.patch.object(stages, "build_module", build_net),
    ):
        return parallelize_module.parallelize(model, net_graph(), plan)
