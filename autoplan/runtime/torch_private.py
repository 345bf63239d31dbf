"""Every private name of torch that autoplan uses, in one place.

``PRIVATE_NAMES`` lists them, so that a test can name what a new torch release took away. Methods
that autoplan overrides are among them: torch would no longer call one whose name has changed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch.distributed.pipelining.schedules  # noqa: F401  (no name of torch leads there before)
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor  # noqa: F401  (read from here)
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: F401  (likewise)

_USED = (
    "torch.ops._c10d_functional.all_reduce",
    "torch.ops._c10d_functional.all_gather_into_tensor",
    "torch.ops._c10d_functional.reduce_scatter_tensor",
    "torch.ops._c10d_functional.all_to_all_single",
    "torch.ops._c10d_functional.wait_tensor",
    "torch.autograd.Variable._execution_engine.queue_callback",
    "torch._C._current_graph_task_id",
    "torch.distributed.device_mesh.DeviceMesh._flatten",
    "torch.distributed.pipelining.schedules._PipelineScheduleRuntime",
    "torch.distributed.pipelining.schedules._Action",
    "torch.distributed.pipelining.schedules._ComputationType",
    "torch.distributed.pipelining.schedules._add_reduce_grad",
    "torch.distributed.pipelining.schedules._add_send_recv",
    "torch.distributed.pipelining._backward.stage_backward_input",
    "torch.distributed.pipelining._backward.stage_backward_weight",
    "torch._subclasses.fake_tensor.FakeTensor",
    "torch.utils._python_dispatch.TorchDispatchMode",
    "torch.UntypedStorage._cdata",
    "torch._C._storage_Use_Count",
)
_OVERRIDDEN = (
    "torch.distributed.pipelining.schedules._PipelineScheduleRuntime._maybe_compute_loss",
    "torch.distributed.pipelining.schedules._PipelineScheduleRuntime._split_inputs",
    "torch.distributed.pipelining.schedules._PipelineScheduleRuntime._step_microbatches",
    "torch.distributed.pipelining.PipelineStage._post_metadata_inference_cleanup",
    "torch.distributed.pipelining.PipelineStage._setup_backward_recv_info",
    "torch.distributed.pipelining.PipelineStage._setup_forward_recv_info",
    "torch.distributed.pipelining.PipelineStage._resolve_peer_global_rank",
    "torch.distributed.pipelining.PipelineStage.backward_one_chunk",
    "torch.distributed.pipelining.PipelineStage.forward_one_chunk",
    "torch.distributed.pipelining.PipelineStage.forward_maybe_with_nosync",
    "torch.distributed.pipelining.PipelineStage.get_bwd_recv_ops",
    "torch.distributed.pipelining.PipelineStage.get_fwd_recv_ops",
    "torch.distributed.pipelining.PipelineStage.get_fwd_send_ops",
    "torch.distributed.pipelining.PipelineStage.set_local_bwd_input",
)
PRIVATE_NAMES = (*_USED, *_OVERRIDDEN)


def resolve(name: str) -> Any:
    """The object that ``name`` stands for.

    Raises:
        AttributeError: when this torch release has no such name; the message holds the name.
    """
    path = name.split(".")
    found: Any = import_module(path[0])
    for part in path[1:]:
        if not hasattr(found, part):
            raise AttributeError(f"this torch release has no {name}")
        found = getattr(found, part)
    return found


all_reduce, all_gather, reduce_scatter, all_to_all, wait, queue_callback = (
    resolve(name) for name in _USED[:6]
)
_graph_task, flatten_mesh = (resolve(name) for name in _USED[6:8])
ScheduleRuntime, PipelineAction, PipelineActionKind, add_reductions, add_messages = (
    resolve(name) for name in _USED[8:13]
)
backward_input, backward_weight = (resolve(name) for name in _USED[13:15])
_holders = resolve("torch._C._storage_Use_Count")
_OWN_HOLDERS = 2  # the tensor, and the storage's name in Python by which we ask


def storage_id(storage: Any) -> int:
    """Identity of the memory, valid while something holds it."""
    return storage._cdata


def is_held_once(tensor: Tensor) -> bool:
    """Whether nothing but this tensor holds its memory, neither a view nor a graph of autograd."""
    storage = tensor.untyped_storage()
    return _holders(storage._cdata) == _OWN_HOLDERS


def is_in_backward() -> bool:
    """Whether autograd runs a backward in this thread, as when a block is computed again."""
    return _graph_task() != -1
