"""Runs the stages of a pipeline by ``torch.distributed.pipelining``, in the planned order.

The order of each rank's actions is ``cost_models.schedules``, the one that was priced; torch adds
the messages, moves the tensors, and makes FSDP gather weights before the first forward and reduce
gradients after the last backward of a stage.

Microbatches are cut by ``data.BatchReader``, not by torch, and the last stage computes the loss,
so that no loss function follows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from autoplan.errors import PlanError
from autoplan.plan import Plan
from autoplan.runtime.engines import Microbatch, Scale, summed, summed_dtype, unscaled
from autoplan.runtime.mesh import RankMesh
from autoplan.runtime.stages import Inputs, LocalStage
from autoplan.runtime.static_stage import Fed, StaticStage
from autoplan.runtime.torch_private import (
    PipelineAction,
    PipelineActionKind,
    ScheduleRuntime,
    add_messages,
    add_reductions,
)
from cost_models.schedules import PipelineShape, ScheduleError, ScheduleName, rank_actions


def shape_of(plan: Plan) -> PipelineShape:
    """The schedule of a plan with a pipeline, and its sizes.

    Raises:
        PlanError: when the schedule cannot run these numbers, or gives a stage to another rank.
    """
    try:
        shape = PipelineShape(
            schedule=cast(ScheduleName, plan.schedule),
            ranks=plan.mesh.pp,
            stages=len(plan.stages),
            microbatches=plan.num_microbatches,
        )
    except ScheduleError as error:
        raise PlanError(f"the plan's pipeline cannot run: {error}") from error
    for index, stage in enumerate(plan.stages):
        if stage.rank != shape.rank_of(index):
            raise PlanError(
                f"stage {index} is on rank {stage.rank} of the pipeline, but {plan.schedule} runs "
                f"it on rank {shape.rank_of(index)}; plan again"
            )
    return shape


class Pipeline:
    """This rank's part of a pipeline."""

    def __init__(
        self,
        stages: Sequence[LocalStage],
        shape: PipelineShape,
        mesh: RankMesh,
        loss_dtype: torch.dtype,
    ) -> None:
        self._mesh = mesh
        self._numbers = [stage.index for stage in stages]
        self._schedule = _Schedule([StaticStage(s, shape, mesh) for s in stages], shape)
        self._nothing = torch.zeros((), dtype=summed_dtype(loss_dtype), device=mesh.device)

    def train(
        self, microbatches: Sequence[Microbatch], counts: Sequence[Inputs], scale: Scale
    ) -> Tensor:
        fed = self._fed(microbatches, counts)
        with self._schedule.scaled(scale) as terms:
            self._schedule.step(fed=fed, return_outputs=False)
        return self._mesh.begin_sum_over_dp(self._total(terms))

    def evaluate(self, microbatches: Sequence[Microbatch], counts: Sequence[Inputs]) -> Tensor:
        fed = self._fed(microbatches, counts)
        with self._schedule.scaled(unscaled) as terms:
            self._schedule.eval(fed=fed, return_outputs=False)
        self._schedule.forget()
        return self._total(terms)

    def _fed(self, microbatches: Sequence[Microbatch], counts: Sequence[Inputs]) -> list[Fed]:
        of_stage = dict(zip(self._numbers, counts, strict=True))
        return [Fed(microbatch, of_stage) for microbatch in microbatches]

    def _total(self, terms: list[Tensor]) -> Tensor:
        """This rank's share of the loss: nothing where it does not run the last stage."""
        return summed(terms) if terms else self._nothing.clone()


class _Schedule(ScheduleRuntime):
    """The actions of all ranks with the messages between them, forward and backward or forward."""

    def __init__(self, stages: list[StaticStage], shape: PipelineShape) -> None:
        super().__init__(stages, shape.microbatches, loss_fn=_given, scale_grads=False)
        self._validate_and_set_stage_mapping(
            {rank: _actions(shape, rank, backward=True) for rank in range(shape.ranks)}
        )
        self._training = schedule_of(shape, backward=True)
        self._evaluation = schedule_of(shape, backward=False)
        self._scale: Scale = unscaled
        self._terms: list[Tensor] = []

    @contextmanager
    def scaled(self, scale: Scale) -> Iterator[list[Tensor]]:
        """Inside, the last stage's output is scaled ahead of its backward; yields it as it was."""
        self._scale, self._terms = scale, []
        yield self._terms
        self._scale, self._terms = unscaled, []

    def forget(self) -> None:
        """Lets go of what forwards left for backwards that do not follow."""
        for stage in self._stages:
            stage.clear_runtime_states()

    def _split_inputs(self, args: Any, kwargs: Any = None) -> tuple[list[Any], list[Any]]:
        fed = kwargs["fed"]
        return [()] * len(fed), [{"fed": one} for one in fed]

    def _step_microbatches(self, *args: Any, **kwargs: Any) -> Any:
        self.pipeline_order_with_comms = self._training if self._has_backward else self._evaluation
        return super()._step_microbatches(*args, **kwargs)

    def _maybe_compute_loss(self, stage: Any, output: Tensor, *_: Any, **__: Any) -> None:
        if stage.is_last:
            self._terms.append(output.detach())
            self._internal_losses.append(self._scale(output))


def schedule_of(shape: PipelineShape, *, backward: bool) -> dict[int, list[Any]]:
    """What torch runs on each rank: the priced actions, or their forwards, with all messages.

    Each stage's weights are gathered once, ahead, and its gradients reduced once, behind.
    """
    kinds, whole = PipelineActionKind, {}
    for rank in range(shape.ranks):
        own = _actions(shape, rank, backward=backward)
        numbers = list(dict.fromkeys(action.stage_index for action in own))
        gathers = [PipelineAction(number, kinds.UNSHARD) for number in numbers]
        frees = [PipelineAction(number, kinds.RESHARD) for number in numbers]
        whole[rank] = [*gathers, *add_reductions(own, shape.microbatches), *frees]
    return add_messages(whole, shape.rank_of, shape.stages)


def _actions(shape: PipelineShape, rank: int, *, backward: bool) -> list[Any]:
    kinds = {
        "F": PipelineActionKind.FORWARD,
        "B": PipelineActionKind.FULL_BACKWARD,
        "I": PipelineActionKind.BACKWARD_INPUT,
        "W": PipelineActionKind.BACKWARD_WEIGHT,
    }
    return [
        PipelineAction(action.stage, kinds[action.kind], action.microbatch)
        for action in rank_actions(shape, rank)
        if backward or action.kind == "F"
    ]


def _given(output: Tensor, *_: Any) -> Tensor:
    """Tells torch that there is a backward; the loss is the last stage's output."""
    return output
