"""One rank of a plan, built and stepped alone: tensors without values, messages to nobody.

Weights, activations and everything made of them are fake tensors, whose storages have a size and
take no memory. Small tensors that the runtime reads values of (ranks of the mesh, digests, seeds)
are real: a tensor is fake if it is made of fake ones, or is a floating-point tensor made of
nothing. The process group is torch's fake one, under which every message ends at once.

What other ranks would say is made up where it is asked for: that batches are the same, and that
stages know their shapes.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.pipelining import PipelineStage
from torch.testing._internal.distributed.fake_pg import FakeStore

from autoplan.plan import Plan
from autoplan.runtime import parallelize as runtime
from autoplan.runtime.live_bytes import LiveBytes
from autoplan.runtime.mesh import RankMesh, build_mesh
from autoplan.trace.graph import OpGraph, TensorMeta

PARAMETERS, GRADIENTS, OPTIMIZER = "parameters", "gradients", "optimizer state"
GATHERED, ACTIVATIONS, PASSING = "gathered parameters", "activations", "passing"

_aten = torch.ops.aten
_MAKERS = frozenset({"empty", "empty_strided", "zeros", "ones", "full"})
_MADE_BY = {
    ("_fsdp_param.py", "init_all_gather_outputs"): GATHERED,
    ("_fsdp_param.py", "to_accumulated_grad_if_needed"): GRADIENTS,
    ("_fsdp_collectives.py", "foreach_reduce"): PASSING,
    ("_fsdp_collectives.py", "foreach_all_gather"): PASSING,
    ("adam.py", "_init_group"): OPTIMIZER,
    ("data_parallel.py", "begin_step"): GATHERED,
    ("gradients.py", "_sum"): PASSING,
    ("graph.py", "_engine_run_backward"): PASSING,
    ("parallelize.py", "parallelize"): PARAMETERS,
    ("train.py", "step"): ACTIVATIONS,
}
"""What a tensor is, by the innermost of these functions that runs when it is made."""


def kind_of_new() -> str:
    """What is being made, by who makes it."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        kind = _MADE_BY.get((code.co_filename.rpartition("/")[2], code.co_name))
        if kind is not None:
            return kind
        frame = frame.f_back
    return PASSING


class FakeWork(LiveBytes):
    """Runs operators without values, and counts the bytes that they would have live."""

    def __init__(self) -> None:
        super().__init__(fakes=True, kind=kind_of_new)
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)

    def tensor(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """A fake tensor; outside the mode."""
        with self._fake:
            return torch.empty(shape, dtype=dtype)

    def has_gradient(self, parameter: Tensor) -> None:
        """What a parameter has as its gradient is one."""
        if parameter.grad is not None:
            self.relabel(parameter.grad, GRADIENTS)

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is _aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return 0.0
        if func is _aten.equal.default and isinstance(args[0], FakeTensor):
            return True
        if _makes_floats(func, args, kwargs):
            with self._fake:
                return func(*args, **kwargs)
        return func(*args, **kwargs)


def _makes_floats(func: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a floating-point tensor is made of nothing, elsewhere than on meta."""
    if func.overloadpacket.__name__ not in _MAKERS:
        return False
    device, dtype = kwargs.get("device"), kwargs.get("dtype") or torch.get_default_dtype()
    return dtype.is_floating_point and (device is None or torch.device(device).type != "meta")


@dataclass(frozen=True, kw_only=True, slots=True)
class Lived:
    """The most bytes that lived at once in one step of a rank, and of what kind they were."""

    peak_bytes: int
    by_kind: Mapping[str, int]


def lived(plan: Plan, model: nn.Module, graph: OpGraph, rank: int) -> Lived:
    """Builds a rank other than the first, and steps it with AdamW.

    Args:
        model: on the meta device.
        graph: of the model, in the plan's precision.
    """
    assert rank > 0, "rank 0 hands out the weights, and would need them"
    assert plan.job.optimizer == "adamw"
    with _one_of(plan, rank) as mesh, FakeWork() as work:
        with mock.patch.object(runtime, "build_mesh", return_value=mesh):
            module = runtime.parallelize(model, graph, plan, device=mesh.device, seed=0)
        optimizer = torch.optim.AdamW(module.parameters(), foreach=True)
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
            parameter.register_post_accumulate_grad_hook(work.has_gradient)
        optimizer.step()
        optimizer.zero_grad()
        rows = plan.job.global_batch // plan.mesh.dp
        batch = {
            given.target: _fed(work, given.outputs[0], rows) for given in graph.of_kind("input")
        }
        work.restart()
        with mock.patch.object(module, "_check_unhooked"):  # these hooks only look
            module.train_step(batch)
        module.clip_grad_norm_(1.0)
        optimizer.step()
        return Lived(peak_bytes=work.peak_bytes, by_kind=dict(work.at_peak))


def _fed(work: FakeWork, meta: TensorMeta, rows: int) -> Tensor:
    """An input of a rank."""
    shape = (rows if dim in meta.batch_dims else size for dim, size in enumerate(meta.shape))
    return work.tensor(*shape, dtype=getattr(torch, meta.dtype))


@contextmanager
def _one_of(plan: Plan, rank: int) -> Iterator[RankMesh]:
    """This process as one rank of the plan's world; its place in the mesh."""
    size = plan.mesh.world_size
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        with (
            warnings.catch_warnings(action="ignore", category=UserWarning),
            mock.patch.object(PipelineStage, "_warmup_backward_result", _all_are_static),
        ):
            yield build_mesh(plan.mesh, plan.replicas, torch.device("cpu"))
    finally:
        dist.destroy_process_group()


def _all_are_static(*_: Any, **__: Any) -> Tensor:
    """What the other stages would say: that shapes are known."""
    return torch.ones(1, dtype=torch.int32)
