"""The whole way in one screen: load the model, capture its graph, plan, emit, run.

PyTorch is imported by the functions that need it, so that plans can be read and reported without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoplan import request
from autoplan.errors import PlanError
from autoplan.plan import Plan

if TYPE_CHECKING:
    from torch import nn

    from autoplan.job import Pins
    from autoplan.runtime import ParallelModule

Progress = Callable[[float, str], None]


def plan(
    model: nn.Module | str,
    example_inputs: tuple[Any, ...] | Mapping[str, Any] | None = None,
    *,
    cluster: str,
    nodes: int = 1,
    gpus_per_node: int | None = None,
    global_batch: int,
    seq_len: int | None = None,
    inputs: Mapping[str, tuple[int, ...]] | None = None,
    precision: str = "bf16",
    optimizer: str = "adamw",
    pins: Mapping[str, int | str] | Pins | None = None,
    loss_fn: Callable[..., Any] | None = None,
    batch_dims: Mapping[str, int | None] | None = None,
    progress: Progress | None = None,
) -> Plan:
    """The best way to train ``model`` on ``cluster``, and what it is predicted to cost.

    Args:
        model: a module (on any device, ``meta`` included), a zoo name, the path of a transformers
            ``config.json``, or ``pkg.mod:factory``.
        example_inputs: arguments of a module, as a tuple or as a dict of keyword arguments, at a
            batch of two or more; not for models given by name, which bring their own.
        cluster: name of a hardware profile, or path of a ``.toml`` file.
        nodes, gpus_per_node: devices used; all of one node by default.
        global_batch: samples per optimizer step.
        seq_len, inputs: tokens per sample, and shapes of inputs, of a model given by name.
        pins: decisions already taken: ``{"tp": 2, "recompute": "full"}``.
        loss_fn: ``loss_fn(outputs, targets)``, when the model does not return its loss.
        batch_dims: the batch dim of each input that does not have it first.
        progress: called with the fraction done and what is being done.

    Raises:
        UnsupportedModelError: the model cannot be loaded, traced or sharded.
        InfeasibleError: nothing fits the memory.
        PlanError, ProfileError: a request that cannot hold.
    """
    profile = request.load_cluster(cluster)
    checked_pins = request.make_pins(pins)
