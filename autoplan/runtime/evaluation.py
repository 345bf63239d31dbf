"""What the model returns without its loss, for the samples of this data-parallel rank.

The program is traced, emitted and bound when outputs are first asked for with inputs of such names
and sizes; who only trains never has it. It runs on the modules and weights that train, with FSDP's
gathers around each unit. Samples are padded to whole microbatches of the plan, as many on every
data-parallel rank, since all of them gather weights together; what is made of padding is cut off.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import register_fsdp_forward_method

from autoplan.codegen import Emitted, bind_methods, choices_of, emit_evaluation
from autoplan.codegen.program import EVALUATE
from autoplan.errors import PlanError
from autoplan.plan import Plan
from autoplan.runtime.agreement import check_same_batch
from autoplan.runtime.collectives import AxisGroup
from autoplan.runtime.data import check_kind
from autoplan.runtime.direct_calls import DIRECT_ATEN
from autoplan.runtime.forward_pipeline import run_forward
from autoplan.runtime.mesh import RankMesh
from autoplan.runtime.rows import Rows, rows_of
from autoplan.runtime.stages import LocalStage
from autoplan.runtime.train import Trainer
from autoplan.trace.evaluation import has_fused_attention
from autoplan.trace.graph import OpGraph
from autoplan.trace.inputs import check_constant
from autoplan.trace.outputs import ModelForward, Structure

Tensors = tuple[Tensor, ...]
KEPT_PROGRAMS = 8
"""So many are kept, of those used last: texts of ever other lengths would pile them up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Program:
    """One way to call the model.

    Attributes:
        structure: what the model returns.
        methods: ``evaluate`` of the modules of this rank's stages.
    """

    emitted: Emitted
    structure: Structure
    methods: Mapping[nn.Module, MethodType]


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
        self._forward = forward
        self._graph = graph
        self._emitted = emitted
        self._plan = plan
        self._stages = {stage.index: stage for stage in stages}
        self._trainer = trainer
        self._axes = axes
        self._mesh = mesh
        self._programs: dict[Any, _Program] = {}
        self._bound: _Program | None = None
        self._metas = {node.target: node.outputs[0] for node in graph.of_kind("input")}

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
        given = {
            name: self._placed(name, value) if isinstance(value, Tensor) else value
            for name, value in self._named(args, kwargs).items()
        }
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        kinds = repr([(name, _kind(value, None)) for name, value in given.items()])
        told = torch.tensor(zlib.crc32(kinds.encode()), device=self._mesh.device)
        check_same_batch([told], self._mesh)  # first: ranks must agree how many tensors there are
        check_same_batch(list(tensors.values()), self._mesh)
        dims = {name: self._batch_dim(name, value) for name, value in tensors.items()}
        rows = rows_of(tensors, dims, self._plan.microbatch, self._mesh)
        program = self._program(given, dims, trains)
        reason = program.emitted.whole_batch
        if reason is not None and rows.count != rows.microbatch:
            raise PlanError(
                f"{reason}, so that an evaluation takes {rows.microbatch} samples at once: feed "
                "as many, or plan for another batch"
            )
        self._bind(program)
        columns = [
            rows.cut(tensors[entry.target], dims[entry.target]) for entry in program.emitted.inputs
        ]
        with self._trainer.forwards():
            parts = self._run(program.emitted, list(zip(*columns, strict=True)))
        return program.structure.filled(self._whole(program.emitted, parts, rows))

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        names = self._forward.positional(len(args))
        if len(names) < len(args) or not kwargs.keys().isdisjoint(names):
            raise PlanError(
                f"{len(args)} inputs by position and {sorted(kwargs)} were given, but the model "
                f"takes {', '.join(self._metas)}"
            )
        for name, value in kwargs.items():
            if name not in self._metas and not self._forward.takes(name, value):
                known = ", ".join(map(repr, self._metas))
                raise PlanError(f"{name!r} is no argument of the model: it was planned for {known}")
        given = dict(zip(names, args, strict=True)) | dict(kwargs)
        for name, value in given.items():
            if not isinstance(value, Tensor):
                check_constant(name, value)
        return given

    def _placed(self, name: str, value: Tensor) -> Tensor:
        if name in self._metas:
            dtype = self._metas[name].dtype
            check_kind(name, value, dtype)
            if value.is_floating_point():
                value = value.to(getattr(torch, dtype))
        return value.to(self._mesh.device, non_blocking=True)

    def _batch_dim(self, name: str, value: Tensor) -> int | None:
        """That of the plan; the first of what it was not planned for."""
        if name in self._metas:
            return next(iter(self._metas[name].batch_dims), None)
        return 0 if value.dim() else None

    def _program(
        self, given: Mapping[str, Any], dims: Mapping[str, int | None], trains: bool
    ) -> _Program:
        key = trains, tuple((name, _kind(value, dims.get(name))) for name, value in given.items())
        program = self._programs.pop(key, None)
        if program is None:
            with torch.inference_mode(False), torch.enable_grad():
                program = self._made(given, dims, trains)
        self._programs[key] = program
        if len(self._programs) > KEPT_PROGRAMS:
            del self._programs[next(iter(self._programs))]
        return program

    def _made(
        self, given: Mapping[str, Any], dims: Mapping[str, int | None], trains: bool
    ) -> _Program:
        graph, structure = self._forward.capture(
            given,
            batch_dims=dims,
            trains=trains,
            global_batch=self._plan.job.global_batch,
            paths=[block.path for block in self._graph.blocks],
            unfuses_attention=not has_fused_attention(self._graph),
        )
        chosen = choices_of(self._graph, self._plan)
        emitted = emit_evaluation(graph, chosen, self._emitted, self._plan.job.model.name)
        methods: dict[nn.Module, MethodType] = {}
        for index, stage in self._stages.items():
            methods |= bind_methods(
                emitted, emitted.stages[index], stage.program, self._axes, aten=DIRECT_ATEN
            )
        return _Program(emitted=emitted, structure=structure, methods=methods)

    def _bind(self, program: _Program) -> None:
        """Makes ``evaluate`` of the modules that of a program, between FSDP's hooks."""
        if self._bound is program:
            return
        for module, method in program.methods.items():
            setattr(module, EVALUATE, method)
            register_fsdp_forward_method(module, EVALUATE)
        self._bound = program

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


def _kind(value: Any, batch_dim: int | None) -> Any:
    """What one program serves: tensors of any batch, and one plain value.

    Values are told by their text: 1, 1.0 and True are equal, and a model does otherwise by each.
    """
    if not isinstance(value, Tensor):
        return type(value), repr(value)
    return value.dtype, tuple(size for dim, size in enumerate(value.shape) if dim != batch_dim)
