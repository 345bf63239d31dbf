"""Emitted blocks under ``torch.compile``: the code of each kind of block is compiled once.

Blocks are compiled one by one, as torchtitan does, not a stage at once: all blocks of a kind then
share one compilation, and what goes on between blocks stays outside: FSDP's hooks, checkpoints and
messages of the pipeline. A stage without blocks is compiled whole. Collectives are traced with the
rest; left out, by breaks of the graph, are

- dropout and BatchNorm, which draw by the number of the step and move buffers, and
- blocks of which single operators run again in the backward: what a compiled backward keeps is the
  compiler's choice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from autoplan.capabilities import RUNNABLE_SCHEDULES
from autoplan.codegen.emitted import EmittedStage
from autoplan.errors import PlanError
from autoplan.runtime.dropout import invariant_dropout
from autoplan.runtime.recompute import runs_again


def check_compiles(backend: str, schedule: str) -> None:
    """Refuses what cannot run compiled.

    Raises:
        PlanError: an unknown backend of ``torch.compile``, or a schedule that splits the backward.
    """
    known = torch.compiler.list_backends(exclude_tags=())
    if backend not in known:
        raise PlanError(f"torch_compile={backend!r} is no backend: use one of {', '.join(known)}")
    if RUNNABLE_SCHEDULES[schedule].splits_backward:
        raise PlanError(
            f"schedule {schedule} splits the backward, which is one piece in a compiled block: "
            "use 1f1b or interleaved_1f1b, or leave torch_compile out"
        )


def compile_program(program: nn.Module, stage: EmittedStage, backend: str) -> None:
    """Makes the classes of a stage's program run compiled; before FSDP takes them.

    Args:
        program: as ``codegen.build_module`` made it.
        backend: of ``torch.compile``.
    """
    names: dict[str, Any] = type(program).forward.__globals__
    if "invariant_dropout" in names:
        names["invariant_dropout"] = torch.compiler.disable(_dropout)
    if "synced_batch_norm" in names:
        names["synced_batch_norm"] = torch.compiler.disable(names["synced_batch_norm"])
    for path in stage.draws_before:  # a plain number would be compiled anew for every block
        block = program.get_submodule(path)
        block.draws_before = torch.tensor(block.draws_before)
    for name in set(stage.block_classes.values()) or (stage.root_class,):
        kind = names[name]
        if not runs_again(kind.forward):
            kind.forward = torch.compile(kind.forward, backend=backend, dynamic=False)


def _dropout(x: Tensor, p: float, train: bool = True, *, number: Any, **told: Any) -> Tensor:
    return invariant_dropout(x, p, train, number=int(number), **told)
