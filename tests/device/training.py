"""Trains a small model by a plan of one rank, next to the model itself, on any device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

import autoplan
from autoplan.runtime.parallelize import parallelize
from tests.distributed.cases import Case, graph_of, greedy_plan, make_batches, make_model

STEPS, LEARNING_RATE = 3, 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class Losses:
    """Of every step: of the program in bf16, and of the model on the same device in fp32."""

    program: tuple[float, ...]
    model: tuple[float, ...]


@contextmanager
def alone(backend: str, device: torch.device, folder: Path) -> Iterator[None]:
    """Inside, a process group of this process."""
    dist.init_process_group(
        backend,
        init_method=f"file://{folder / 'rendezvous'}",
        rank=0,
        world_size=1,
        device_id=device if device.type == "cuda" else None,
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def losses(name: str, device: torch.device, *, recompute: bool, compiler: str | None) -> Losses:
    """Of a few steps in two microbatches with AdamW.

    Args:
        name: of a model of ``tests.distributed.cases``.
        compiler: backend of ``torch.compile`` for the emitted program; None runs it eagerly.
    """
    case = Case(name, (1, 1), 0, recompute, torch.bfloat16, 2, "adamw")
    graph = graph_of(name, torch.bfloat16)
    pm = parallelize(
        make_model(name, torch.float32),
        graph,
        greedy_plan(graph, case, precision="bf16"),
        device=device,
        seed=0,
        compiler=compiler,
    )
    batches = [
        {key: value.to(device) for key, value in batch.items()}
        for batch in make_batches(name, torch.float32)[:STEPS]
    ]
    optimizer = torch.optim.AdamW(pm.parameters(), lr=LEARNING_RATE)
    found = []
    for batch in batches:
        found.append(pm.train_step(batch).item())
        pm.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    return Losses(program=tuple(found), model=_of_model(name, device, batches))


def _of_model(
    name: str, device: torch.device, batches: list[dict[str, torch.Tensor]]
) -> tuple[float, ...]:
    model = make_model(name, torch.float32).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    found = []
    for step, batch in enumerate(batches):
        with autoplan.reference_dropout(seed=0, step=step):
            output = model(**batch)
        loss = output if isinstance(output, torch.Tensor) else output.loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return tuple(found)
