"""Data parallelism by ZeRO stage, on PyTorch's FSDP2.

``autoplan.capabilities.zero_stage`` says what each stage holds and sends; this module makes FSDP2
do that. Gradients are summed over ``dp``, never averaged: every rank computes its term of the
global loss. Stage 0 and a single data-parallel rank need no FSDP: the parameters stay whole, and
``gradients.GradientSum`` sums them once a step. In a mixed precision plan whole parameters are
stored in float32 and lent to the program in the lower precision, once a step for all microbatches;
the program also has them as its parameters, since schedules that split the backward look for
weights there.

Each pipeline stage is an FSDP root of its own. What its forwards and backwards send and free is
then up to ``torch.distributed.pipelining``, which keeps weights gathered and gradients whole until
its last backward, whatever the ZeRO stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard as DShard

from autoplan.capabilities import ZeroStage, zero_stage
from autoplan.codegen.emitted import EmittedStage
from autoplan.runtime.layout import ParameterLayout
from autoplan.runtime.mesh import RankMesh
from autoplan.runtime.weights import MASTER_DTYPE, WeightSource


class DataParallel:
    """The parameters of one pipeline stage under one ZeRO stage, and what a step does to them.

    Attributes:
        parameters: what the optimizer steps, by original name.
        whole: those of them that are whole on ``dp``.
    """

    def __init__(
        self,
        program: nn.Module,
        source: WeightSource,
        stage: EmittedStage,
        *,
        layouts: Mapping[str, ParameterLayout],
        held: Mapping[str, nn.Parameter],
        zero: int,
        mesh: RankMesh,
        compute_dtype: torch.dtype | None,
    ) -> None:
        """Fills ``program``, made of placeholders, with weights, and shards it unit by unit.

        Args:
            layouts: where each parameter lies.
            held: parameters of earlier stages of this rank, which its stages share.
        """
        self._program = program
        self._zero = zero_stage(zero, pipeline=mesh.pp > 1, accumulates=True)
        self._mesh = mesh
        self._compute_dtype = compute_dtype
        self._layouts = layouts
        self._lent: list[tuple[nn.Module, str, nn.Parameter]] = []
        self.whole: dict[str, nn.Parameter] = {}
        found: dict[str, nn.Parameter] = {}
        for path, names in units(stage):
            weights = {name: source.parameter(name) for name in names}
            weights |= {name: held[name] for name in names if name in held}
            found |= self._fill_unit(path, weights)
        self.parameters = {name: found[name] for name in stage.parameters}

    def begin_step(self) -> None:
        """Lends the whole parameters to the program in the precision it computes in."""
        for module, name, parameter in self._lent:
            setattr(module, name, parameter.to(self._compute_dtype))

    def begin_microbatch(self, *, is_last: bool) -> None:
        """Sets what the next backward sends and frees, by the stage's row of the table."""
        if isinstance(self._program, FSDPModule):
            reduces = is_last or not self._zero.holds_full_gradients
            self._program.set_requires_gradient_sync(reduces)
            self._program.set_reshard_after_backward(is_last or not self._zero.keeps_weights)

    def free_gathered(self) -> None:
        """Frees gathered weights after a forward that no backward follows."""
        for module in self._program.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def _fill_unit(self, path: str, weights: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Gives one unit its weights; returns the parameters that then stand for them."""
        for name, weight in weights.items():
            module, leaf = self._slot(name)
            if self._is_lent(name, weight):
                delattr(module, leaf)
                self._program.register_parameter(f"lent {len(self._lent)}", weight)
                self._lent.append((module, leaf, weight))
            else:
                module.register_parameter(leaf, weight)
        dims = {weight: self._layouts[name].dp_dim for name, weight in weights.items()}
        self.whole |= {name: weight for name, weight in weights.items() if dims[weight] is None}
        is_root = path == ""
        shards = shards_states(self._zero, self._mesh)
        if shards and (is_root or any(dim is not None for dim in dims.values())):
            self._shard(self._program.get_submodule(path), dims)
        return {
            name: weight if dims[weight] is None else getattr(*self._slot(name))
            for name, weight in weights.items()
        }

    def _shard(self, unit: nn.Module, dims: Mapping[nn.Parameter, int | None]) -> None:
        is_mixed = self._compute_dtype is not None
        sharded = fully_shard(
            unit,
            mesh=self._mesh.sharing(),
            reshard_after_forward=not self._zero.keeps_weights,
            shard_placement_fn=lambda weight: DShard(dims[weight] or 0),
            mp_policy=MixedPrecisionPolicy(
                param_dtype=self._compute_dtype,
                reduce_dtype=MASTER_DTYPE if is_mixed else None,
                cast_forward_inputs=False,
            ),
            ignored_params=set(self.whole.values()),
        )
        sum_gradients(sharded)

    def _is_lent(self, name: str, weight: nn.Parameter) -> bool:
        is_whole = self._layouts[name].dp_dim is None
        return is_whole and self._compute_dtype is not None and weight.is_floating_point()

    def _slot(self, name: str) -> tuple[nn.Module, str]:
        """The module of the program that holds a parameter, and the attribute."""
        owner, _, leaf = name.rpartition(".")
        return self._program.get_submodule(owner), leaf


def shards_states(zero: ZeroStage, mesh: RankMesh) -> bool:
    """Whether weights and optimizer states are split over ``dp``."""
    return zero.shards_states and mesh.shards > 1


def units(stage: EmittedStage) -> Iterator[tuple[str, list[str]]]:
    """The parameter names of every unit of a stage, and at last of its root (path ``""``)."""
    rest = list(stage.parameters)
    for path in stage.unit_paths:
        yield path, [name for name in rest if name.startswith(f"{path}.")]
        rest = [name for name in rest if not name.startswith(f"{path}.")]
    yield "", rest


def sum_gradients(unit: FSDPModule) -> None:
    """Makes FSDP2 sum the gradients of a unit, where it would average them."""
    unit.set_gradient_divide_factor(1.0)
    unit.set_force_sum_reduction_for_comms(True)
