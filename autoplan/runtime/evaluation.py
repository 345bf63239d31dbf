"""What the model returns without its loss, for the samples of this data-parallel rank.

A program of it (``evaluation_programs``) runs on the modules and weights that train, with FSDP's
gathers around each unit. Samples are padded to whole microbatches of the plan, as many on every
data-parallel rank, since all of them gather weights together; what is made of padding is cut off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from autoplan.codegen.emitted import Emitted
from autoplan.errors import PlanError
from autoplan.plan import Plan
from autoplan.runtime.collectives import AxisGroup
from autoplan.runtime.evaluation_inputs import EvaluationReader
from autoplan.runtime.evaluation_programs import EvaluationPrograms
from autoplan.runtime.forward_pipeline import run_forward
from autoplan.runtime.mesh import RankMesh
from autoplan.runtime.rows import Rows, rows_of
from autoplan.runtime.stages import LocalStage
from autoplan.runtime.train import Trainer
from autoplan.trace.graph import OpGraph
from autoplan.trace.outputs import ModelForward

Tensors = tuple[Tensor, ...]


class Evaluator:
    """Runs the model without its loss on this rank's stages."""

    def __init__(
        self,
        forward: ModelForward,
        graph: OpGraph,
        emitted: Emitted,
        plan: Plan,
        stages: Sequence[LocalStage],
        trainer: Trainer,
        axes: Mapping[str, AxisGroup],
        mesh: RankMesh,
    ) -> None:
        """Keeps what a program will be made of.

        Args:
            graph: that the plan is for, and that ``emitted`` is the program of.
        """
        self._reader = EvaluationReader(forward, graph, mesh)
        self._programs = EvaluationPrograms(forward, graph, emitted, plan, stages, axes)
        self._stages = {stage.index: stage for stage in stages}
        self._microbatch = plan.microbatch
        self._trainer = trainer
        self._mesh = mesh

    def outputs(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, trains: bool) -> Any:
        """What the model returns for these arguments, whole on every rank.

        Args:
            trains: whether the module is in training mode.

        Raises:
            PlanError: arguments that the model has not, or that do not fit each other.
            UnsupportedModelError: arguments that are neither tensors nor constants, a model that
                computes otherwise in training, or whose outputs cannot be traced or computed by
                parts.
        """
        given = self._reader.read(args, kwargs)
        tensors, dims = given.tensors, given.batch_dims
        rows = rows_of(tensors, dims, self._microbatch, self._mesh)
        program = self._programs.program(given, trains=trains)
        reason = program.emitted.whole_batch
        if reason is not None and rows.count != rows.microbatch:
            raise PlanError(
                f"{reason}, so that an evaluation takes {rows.microbatch} samples at once: feed "
                "as many, or plan for another batch"
            )
        self._programs.bind(program)
        columns = [
            rows.cut(tensors[entry.target], dims[entry.target]) for entry in program.emitted.inputs
        ]
        with self._trainer.forwards():
            parts = self._run(program.emitted, list(zip(*columns, strict=True)))
        return program.structure.filled(self._whole(program.emitted, parts, rows))

    def _run(self, emitted: Emitted, microbatches: Sequence[Tensors]) -> Sequence[Tensors]:
        """What the last stage makes of each microbatch; nothing on ranks that do not run it."""

        def run(stage: int, received: Tensors, microbatch: int) -> Tensors:
            own = emitted.stages[stage]
            inputs = (microbatches[microbatch][index] for index in own.inputs)
            draws = {"draws": None} if own.takes_draws else {}
            found = self._stages[stage].program.evaluate(*received, *inputs, **draws)
            return found if isinstance(found, tuple) else (found,)

        if self._mesh.pp == 1:
            return [run(0, (), microbatch) for microbatch in range(len(microbatches))]
        return run_forward(emitted, run, len(microbatches), self._mesh)

    def _whole(self, emitted: Emitted, parts: Sequence[Tensors], rows: Rows) -> list[Tensor]:
        """The outputs for all samples, handed by the last stage to all ranks of the pipeline."""
        found: list[Tensor] = []
        last = self._mesh.rank_at(emitted.stages[-1].rank)
        for index, output in enumerate(emitted.outputs):
            whole = rows.place(output, self._mesh.device)
            if parts:
                rows.join([part[index] for part in parts], output, whole)
            if self._mesh.pp > 1:
                dist.broadcast(whole, src=last, group=self._mesh.group("pp"))
            found.append(whole)
        return found
