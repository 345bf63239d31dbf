"""Every private name of torch that autoplan uses, in one place.

``PRIVATE_NAMES`` lists them, so that a test can name what a new torch release took away.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch.distributed.pipelining.schedules  # noqa: F401  (no name of torch leads there before)

PRIVATE_NAMES = (
    "torch.ops._c10d_functional.all_reduce",
    "torch.ops._c10d_functional.all_gather_into_tensor",
    "torch.ops._c10d_functional.reduce_scatter_tensor",
    "torch.ops._c10d_functional.all_to_all_single",
    "torch.ops._c10d_functional.wait_tensor",
    "torch.autograd.Variable._execution_engine.queue_callback",
    "torch.distributed.pipelining.schedules._PipelineScheduleRuntime",
    "torch.distributed.pipelining.schedules._Action",
    "torch.distributed.pipelining.schedules._ComputationType",
    "torch.distributed.pipelining.schedules._add_reduce_grad",
    "torch.distributed.pipelining.schedules._add_send_recv",
)


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
    resolve(name) for name in PRIVATE_NAMES[:6]
)
ScheduleRuntime, PipelineAction, PipelineActionKind, add_reductions, add_messages = (
    resolve(name) for name in PRIVATE_NAMES[6:]
)
