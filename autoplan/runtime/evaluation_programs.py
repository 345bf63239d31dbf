"""Programs of a model without its loss, made when they are first needed and kept for the next call.

A program is traced, emitted and bound to the modules that train, as another method of each; who
only trains never has one. Those used last are kept: texts of ever other lengths would pile them up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import register_fsdp_forward_method

from autoplan.codegen.build import bind_methods
from autoplan.codegen.emitted import Emitted
from autoplan.codegen.evaluation import emit_evaluation
from autoplan.codegen.pipeline import choices_of
from autoplan.codegen.program import EVALUATE
from autoplan.plan import Plan
from autoplan.runtime.collectives import AxisGroup
from autoplan.runtime.direct_calls import DIRECT_ATEN
from autoplan.runtime.evaluation_inputs import EvaluationInputs
from autoplan.runtime.stages import LocalStage
from autoplan.trace.evaluation import has_fused_attention
from autoplan.trace.graph import OpGraph
from autoplan.trace.outputs import ModelForward, Structure

KEPT_PROGRAMS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationProgram:
    """One way to call the model.

    Attributes:
        structure: what the model returns.
        methods: ``evaluate`` of the modules of this rank's stages.
    """

    emitted: Emitted
    structure: Structure
    methods: Mapping[nn.Module, MethodType]

    def bind(self) -> None:
        """Makes ``evaluate`` of the modules that of this program, between FSDP's hooks."""
        for module, method in self.methods.items():
            setattr(module, EVALUATE, method)
            register_fsdp_forward_method(module, EVALUATE)


class EvaluationPrograms:
    """The programs of this rank's stages, one of them bound.

    Args:
        graph: that the plan is for, and that ``emitted`` is the program of.
    """

    def __init__(
        self,
        forward: ModelForward,
        graph: OpGraph,
        emitted: Emitted,
        plan: Plan,
        stages: Sequence[LocalStage],
        axes: Mapping[str, AxisGroup],
    ) -> None:
        self._forward = forward
        self._graph = graph
        self._emitted = emitted
        self._plan = plan
        self._stages = tuple(stages)
        self._axes = axes
        self._kept: dict[Any, EvaluationProgram] = {}
        self._bound: EvaluationProgram | None = None

    def program(self, given: EvaluationInputs, *, trains: bool) -> EvaluationProgram:
        """That of calls of this kind.

        Args:
            trains: whether the module is in training mode.

        Raises:
            UnsupportedModelError: when the model computes otherwise in training, or its outputs
                cannot be traced or computed by parts.
        """
        key = trains, given.kind
        program = self._kept.pop(key, None)
        if program is None:
            with torch.inference_mode(False), torch.enable_grad():
                program = self._made(given, trains)
        self._kept[key] = program
        if len(self._kept) > KEPT_PROGRAMS:
            del self._kept[next(iter(self._kept))]
        return program

    def bind(self, program: EvaluationProgram) -> None:
        """Makes it the one that the modules run."""
        if self._bound is not program:
            program.bind()
            self._bound = program

    def _made(self, given: EvaluationInputs, trains: bool) -> EvaluationProgram:
        graph, structure = self._forward.capture(
            given.values,
            batch_dims=given.batch_dims,
            trains=trains,
            global_batch=self._plan.job.global_batch,
            paths=[block.path for block in self._graph.blocks],
            unfuses_attention=not has_fused_attention(self._graph),
        )
        chosen = choices_of(self._graph, self._plan)
        emitted = emit_evaluation(graph, chosen, self._emitted, self._plan.job.model.name)
        methods: dict[nn.Module, MethodType] = {}
        for stage in self._stages:
            methods |= bind_methods(
                emitted, emitted.stages[stage.index], stage.program, self._axes, aten=DIRECT_ATEN
            )
        return EvaluationProgram(emitted=emitted, structure=structure, methods=methods)
