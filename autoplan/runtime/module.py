"""The module that a training script holds: the emitted program behind the face of ``nn.Module``.

Parameters are the pieces that this rank's optimizer steps, under the model's own names. A step is
``train_step``; with a single microbatch the ordinary ``loss = pm(**inputs); loss.backward()`` works
too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from autoplan.codegen.emitted import Emitted
from autoplan.errors import PlanError, UnsupportedModelError
from autoplan.measurement import StepMeasurement
from autoplan.plan import Plan
from autoplan.runtime.checkpoint import load_checkpoint, save_checkpoint
from autoplan.runtime.comparison import compare_step, loss_on
from autoplan.runtime.data import Batch, BatchReader
from autoplan.runtime.evaluation import Evaluator
from autoplan.runtime.gradients import gradient_norm, scale_gradients
from autoplan.runtime.loss_scaling import check_scalable, share_overflow
from autoplan.runtime.measure import measure_steps
from autoplan.runtime.mesh import RankMesh
from autoplan.runtime.stages import LocalStage
from autoplan.runtime.state import TrainingState
from autoplan.runtime.train import Trainer
from autoplan.trace.guards import autocast_around, gradient_hooks
from autoplan.verdict import Verification


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedModel:
    """What the module must know of the model it was traced from.

    Attributes:
        tied: groups of parameter names that are one tensor; the first is the name it goes by.
        training: the mode it was traced in.
        mode_dependent: an operator that computes otherwise in eval mode, if there is one and the
            program does not serve both modes.
        lowest_dtype: of the floating-point values that it computes.
        readers: the first operator that reads each parameter, by name.
        positional: names of its arguments in the order of its ``forward``.
    """

    fingerprint: str
    tied: tuple[tuple[str, ...], ...]
    training: bool
    mode_dependent: str | None
    lowest_dtype: torch.dtype
    readers: Mapping[str, str]
    positional: tuple[str, ...]


class ParallelModule(nn.Module):
    """One rank of a model in parallel training; made by ``parallelize``.

    Attributes:
        plan: what it runs.
        data_rank, data_world: index of this rank among those that feed different data, and their
            number; ranks with the same ``data_rank`` must feed the same.
    """

    def __init__(
        self,
        *,
        stages: Sequence[LocalStage],
        trainer: Trainer,
        state: TrainingState,
        emitted: Emitted,
        plan: Plan,
        mesh: RankMesh,
        traced: TracedModel,
        evaluator: Evaluator,
    ) -> None:
        super().__init__()
        self.programs = nn.ModuleList(stage.program for stage in stages)
        self.plan = plan
        self.data_rank, self.data_world = mesh.dp_rank, mesh.dp
        self._emitted = emitted
        self._mesh = mesh
        self._stages = tuple(stages)
        self._trainer = trainer
        self._state = state
        self._traced = traced
        self._evaluator = evaluator
        is_alone = mesh.world_size == 1
        frozen = ((n, p) for n, p in state.parameters.items() if not p.requires_grad)
        self._frozen = {} if is_alone else dict(frozen)
        is_whole = is_alone and plan.num_microbatches == 1
        hooked = {} if is_whole else state.parameters
        self._own_hooks = {name: gradient_hooks(p) for name, p in hooked.items()}
        self._reader = BatchReader(
            emitted.inputs,
            positional=traced.positional,
            samples=plan.job.global_batch,
            num_microbatches=plan.num_microbatches,
            mesh=mesh,
        )
        self.training = traced.training

    def train_step(self, batch: Batch, scaler: GradScaler | None = None) -> Tensor:
        """Runs one step on this rank's share of the global batch; the optimizer is not stepped.

        Adds the gradients of the global loss to ``.grad``; with a ``scaler``, those of the scaled
        loss, for ``scaler.unscale_(opt)``, ``scaler.step(opt)`` and ``scaler.update()`` to take as
        ever. Where a gradient overflows on one rank, all ranks skip the step and lower the scale.

        Args:
            batch: ``global_batch / data_world`` rows: a mapping by input name, or a sequence in the
                order of the model's arguments, targets of a loss function last.
            scaler: needed where the plan computes in fp16.

        Returns:
            The loss of the global batch, detached and unscaled, the same on every rank.

        Raises:
            PlanError: when inputs are missing or of another size, or the scaler is; without
                gradients (``torch.no_grad``); for parameters that were frozen and no longer are,
                or have a hook that would not see their whole gradient.
        """
        _check_no_autocast()
        self._check_learns()
        self._check_unhooked()
        microbatches = self._reader.microbatches(self._reader.read(batch))
        if scaler is None or not scaler.is_enabled():
            self._check_unscaled()
            return self._trainer.step(microbatches)
        check_scalable(self._state.parameters)
        scaler.scale(torch.zeros((), device=self._mesh.device))  # ranks without a loss need it too
        loss = self._trainer.step(microbatches, scaler.scale)  # pyright: ignore[reportArgumentType]
        share_overflow(self._state.parameters.values(), self._mesh)
        return loss

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The loss of the global batch, from this rank's share of it; or outputs without a loss.

        Its ``backward()`` adds the gradients that ``train_step`` does. Without gradients
        (``torch.no_grad``) it works for any number of microbatches.

        Without gradients and without all inputs that the loss is made of (no labels or targets, or
        ``None`` for them), returns what the model returns for these inputs: any number of samples,
        those of this data-parallel rank, the same for its model-parallel peers. Outputs are whole
        on every rank of the pipeline and of ``tp``. Other lengths, and other arguments that the
        model has, are traced when they first come. All ranks must call it.

        Raises:
            PlanError: with gradients, when the plan has several microbatches or a pipeline, an
                input is missing, or a parameter that was frozen no longer is; without, for what is
                no argument of the model.
            UnsupportedModelError: outputs of a model that drops, in training mode, or that cannot
                be traced or computed for a part of the batch.
        """
        _check_no_autocast()
        if missing := self._reader.missing(args, kwargs):
            if torch.is_grad_enabled():
                raise PlanError(
                    f"{', '.join(map(repr, missing))} is missing for the loss; to get outputs "
                    "without a loss, call the module in torch.no_grad()"
                )
            return self._evaluator.outputs(args, kwargs, trains=self.training)
        microbatches = self._reader.microbatches(self._reader.named(args, kwargs))
        if not torch.is_grad_enabled():
            return self._trainer.evaluate(microbatches)
        self._check_learns()
        self._check_unhooked()
        self._check_unscaled()
        if self._mesh.pp > 1:
            raise PlanError(
                f"the plan has a pipeline of pp = {self._mesh.pp}, whose stages run forward and "
                "backward by its schedule: use train_step(batch)"
            )
        if len(microbatches) > 1:
            raise PlanError(
                f"the plan has {len(microbatches)} microbatches, whose backward passes take turns "
                "with their forward passes: use train_step(batch), or plan for one microbatch"
            )
        return self._trainer.loss(microbatches[0])

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scales the gradients so that their norm is at most ``max_norm``.

        Returns:
            The 2-norm of all gradients as one vector before scaling, on every rank. Tied
            parameters count once.
        """
        norm = gradient_norm(self._state.parameters, self._state.layouts, self._mesh)
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        scale_gradients(self._state.parameters.values(), factor)
        return norm

    def shard_batch(self, batch: Batch) -> Any:
        """This rank's rows of a global batch that every rank holds."""
        return self._reader.shard(batch)

    def save(
        self,
        path: str | Path,
        optimizer: Optimizer | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes a checkpoint that loads under any plan of this model; all ranks must call it.

        Args:
            path: a folder that all ranks see. One that holds a checkpoint keeps it, whole, until
                the new one is complete.
            extra: anything that JSON holds (step, epoch, scheduler state).

        Raises:
            CheckpointError: when ``extra`` is not JSON, or the optimizer holds other parameters.
        """
        save_checkpoint(Path(path), self._state, self._traced.fingerprint, optimizer, extra or {})

    def load(self, path: str | Path, optimizer: Optimizer | None = None) -> dict[str, Any]:
        """Reads weights, buffers and, for an ``optimizer``, its state; returns what was ``extra``.

        Raises:
            CheckpointError: when the checkpoint is missing, damaged or of another model.
        """
        for stage in self._stages:
            stage.data_parallel.free_gathered()
        return load_checkpoint(Path(path), self._state, self._traced.fingerprint, optimizer)

    def verify(
        self,
        model: nn.Module,
        batch: Batch,
        loss_fn: Callable[[Any, Any], Tensor] | None = None,
        precision: torch.dtype | None = None,
    ) -> Verification:
        """Compares a step with the one of the whole model, which every rank runs; all must call it.

        Weights stay as they are, and gradients are gone when it returns.

        Args:
            model: what this module was compiled from, with the weights that it has now.
            batch: the global batch, the same on every rank; a mapping may hold plain values too.
            loss_fn: as it was compiled with.
            precision: the lowest in which ``model`` computes anything, if lower than the program's.

        Returns:
            The differences of loss, gradients and weights after a step, and whether they are
            within what rounding explains; the same on every rank.

        Raises:
            PlanError: when the program computes in less than float32, or the weights differ.
        """
        loss = partial(loss_on, model, batch, loss_fn)
        fed = batch
        if isinstance(batch, Mapping):
            fed = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
        lowest = precision or self._traced.lowest_dtype
        found = compare_step(self, self._state, model, loss, fed, lowest)
        readers = self._traced.readers
        return Verification(
            ranks=self._mesh.world_size,
            precision=str(lowest).removeprefix("torch."),
            differences=tuple(replace(d, reader=readers.get(d.name, "")) for d in found),
        )

    def measure(self, batch: Batch, steps: int = 20) -> StepMeasurement:
        """Times training steps and counts their bytes; all ranks must call it.

        The optimizer is one of the plan's kind that changes nothing: weights, buffers and dropouts
        stay as they are. Gradients are gone when it returns.

        Args:
            batch: this rank's share of the global batch, as for ``train_step``.
            steps: to time, besides those that warm up and are counted.

        Returns:
            The same on every rank.

        Raises:
            PlanError: too few steps, a plan in fp16, or inputs as ``train_step`` refuses.
        """
        return measure_steps(self, self._state, self._mesh, batch, steps)

    def print_source(self) -> None:
        """Prints the program that this rank runs."""
        print(self._emitted.source)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """The pieces of this rank by the model's own names; a tied parameter goes by its first.

        With ``remove_duplicate=False`` the other names of tied parameters follow it.
        """
        lead = f"{prefix}." if prefix else ""
        for name, parameter in self._state.parameters.items():
            yield lead + name, parameter
            if not remove_duplicate:
                for other in self._other_names(name):
                    yield lead + other, parameter

    def state_dict(self, *args: Any, prefix: str = "", **kwargs: Any) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """This rank's pieces (DTensors where split) and buffers, by all the model's names."""
        named = self.named_parameters(remove_duplicate=False)
        state = {prefix + name: parameter.detach() for name, parameter in named}
        return state | {prefix + name: value for name, value in self._state.buffers.items()}

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Not offered: it would load one rank's pieces; ``load`` reads checkpoints of any plan."""
        raise PlanError("load_state_dict of a parallel module: use load(path) with a checkpoint")

    def train(self, mode: bool = True) -> ParallelModule:
        """Switches mode where the program serves both; else only to the mode that was traced.

        It does if in eval mode the model is the same without dropout and by BatchNorm's running
        statistics (``trace.evaluation``).

        Raises:
            UnsupportedModelError: when the model does anything else by its mode, or when it was
                traced in eval mode, which leaves no trace of what only training does.
        """
        if mode and not self._traced.training:
            raise UnsupportedModelError(
                "the model was traced in eval mode, so the program lacks what only training does "
                "(dropout): call model.train() before it is traced"
            )
        if not mode and self._traced.training and self._traced.mode_dependent is not None:
            raise UnsupportedModelError(
                f"{self._traced.mode_dependent} was traced in training mode, which is part of the "
                "program: trace the model in eval mode to evaluate it"
            )
        self.training = mode
        self._trainer.drops = mode or not self._traced.training
        return self

    def _check_learns(self) -> None:
        """A step has a backward, of the parameters that were planned to learn and no others."""
        if not torch.is_grad_enabled():
            raise PlanError(
                "train_step in torch.no_grad() has no backward: leave no_grad, or call the module "
                "itself for the loss alone"
            )
        if freed := [name for name, weight in self._frozen.items() if weight.requires_grad]:
            raise PlanError(
                f"{freed[0]} was frozen when the model was compiled, so that its gradient is not "
                "summed over the ranks: compile again with requires_grad as it is to be"
            )

    def _check_unhooked(self) -> None:
        """A hook would see the terms of one rank or microbatch, or, of weights in shards, nothing;
        with one rank and one microbatch it sees the gradient."""
        for name, own in self._own_hooks.items():
            if gradient_hooks(self._state.parameters[name]) > own:
                raise PlanError(
                    f"{name!r} has a hook on its gradient, which would not see the whole of it: "
                    "change .grad between train_step and the optimizer's step"
                )

    def _check_unscaled(self) -> None:
        if self.plan.job.precision == "fp16":
            raise PlanError(
                "the plan computes in fp16, where small gradients vanish: use "
                "train_step(batch, scaler=torch.amp.GradScaler()), or plan with precision bf16"
            )

    def _other_names(self, name: str) -> Sequence[str]:
        return next((group[1:] for group in self._traced.tied if group[0] == name), ())


def _check_no_autocast() -> None:
    kind = autocast_around()
    if kind is not None:
        raise PlanError(
            f"torch.autocast({kind!r}) is on around the step, whose precision is the plan's: leave "
            "it, and plan with precision='bf16' or 'fp16'"
        )
