"""Data parallelism by ZeRO stage, on PyTorch's FSDP2.

``autoplan.capabilities.ZERO_STAGES`` says what each stage holds and sends; this module makes FSDP2
do that. Gradients are summed over ``dp``, never averaged: every rank computes its term of the
global loss. Stage 0 and a single data-parallel rank need no FSDP: the parameters stay whole, and
``gradients.GradientSum`` sums them once a step. In a mixed precision plan whole parameters are
stored in float32 and lent to the program in the lower precision, forward by forward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard as DShard

from autoplan.capabilities import ZERO_STAGES, ZeroStage
from autoplan.runtime.gradients import GradientSum
from autoplan.runtime.layout import ParameterLayout, dp_shard_dim
from autoplan.runtime.mesh import RankMesh
from autoplan.runtime.weights import MASTER_DTYPE, WeightSource


class DataParallel:
    """The parameters of one rank under one ZeRO stage, and what a step does to them.

    Attributes:
        parameters: what the optimizer steps, by original name.
        layouts: which piece of each parameter and buffer this rank holds.
        gradient_sum: of the parameters that this stage leaves whole on ``dp``.
    """

    def __init__(
        self,
        program: nn.Module,
        source: WeightSource,
        *,
        unit_paths: Sequence[str],
        zero: int,
        mesh: RankMesh,
        compute_dtype: torch.dtype | None,
    ) -> None:
        """Fills ``program``, made of placeholders, with weights, and shards it unit by unit."""
        self._program = program
        self._stage: ZeroStage = ZERO_STAGES[zero]
        self._mesh = mesh
        self._compute_dtype = compute_dtype
        self._lent: list[tuple[nn.Module, str, nn.Parameter]] = []
        self._whole: set[nn.Parameter] = set()
        self._shards = self._stage.shards_states and mesh.dp > 1
        self.layouts = _layouts(source, mesh, shards=self._shards)
        found: dict[str, nn.Parameter] = {}
        for path, names in _units(unit_paths, source.parameter_names):
            found |= self._fill_unit(path, names, source)
        self.parameters = {name: found[name] for name in source.parameter_names}
        self.gradient_sum = GradientSum(
            (p for p in self.parameters.values() if p in self._whole), mesh
        )

    def begin_forward(self) -> None:
        """Lends the whole parameters to the program in the precision it computes in."""
        for module, name, parameter in self._lent:
            setattr(module, name, parameter.to(self._compute_dtype))

    def begin_microbatch(self, *, is_last: bool) -> None:
        """Sets what the next backward sends and frees, by the stage's row of the table."""
        if isinstance(self._program, FSDPModule):
            reduces = is_last or not self._stage.holds_full_gradients
            self._program.set_requires_gradient_sync(reduces)
            self._program.set_reshard_after_backward(is_last or not self._stage.keeps_weights)

    def free_gathered(self) -> None:
        """Frees gathered weights after a forward that no backward follows."""
        for module in self._program.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def _fill_unit(
        self, path: str, names: Sequence[str], source: WeightSource
    ) -> dict[str, nn.Parameter]:
        """Gives one unit its weights; returns the parameters that then stand for them."""
        weights = {name: source.parameter(name) for name in names}
        for name, weight in weights.items():
            module, leaf = self._slot(name)
            if self._is_lent(name, weight):
                delattr(module, leaf)
                self._lent.append((module, leaf, weight))
            else:
                module.register_parameter(leaf, weight)
        dims = {weight: self.layouts[name].dp_dim for name, weight in weights.items()}
        self._whole |= {weight for weight, dim in dims.items() if dim is None}
        is_root = path == ""
        if self._shards and (is_root or any(dim is not None for dim in dims.values())):
            self._shard(self._program.get_submodule(path), dims)
        return {
            name: weight if dims[weight] is None else getattr(*self._slot(name))
            for name, weight in weights.items()
        }

    def _shard(self, unit: nn.Module, dims: Mapping[nn.Parameter, int | None]) -> None:
        is_mixed = self._compute_dtype is not None
        fully_shard(
            unit,
            mesh=self._mesh.axis("dp"),
            reshard_after_forward=not self._stage.keeps_weights,
            shard_placement_fn=lambda weight: DShard(dims[weight] or 0),
            mp_policy=MixedPrecisionPolicy(
                param_dtype=self._compute_dtype,
                reduce_dtype=MASTER_DTYPE if is_mixed else None,
                cast_forward_inputs=False,
            ),
            ignored_params=self._whole,
        )
        assert isinstance(unit, FSDPModule)
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)

    def _is_lent(self, name: str, weight: nn.Parameter) -> bool:
        is_whole = self.layouts[name].dp_dim is None
        return is_whole and self._compute_dtype is not None and weight.is_floating_point()

    def _slot(self, name: str) -> tuple[nn.Module, str]:
        """The module of the program that holds a parameter, and the attribute."""
        owner, _, leaf = name.rpartition(".")
        return self._program.get_submodule(owner), leaf


def _layouts(source: WeightSource, mesh: RankMesh, *, shards: bool) -> dict[str, ParameterLayout]:
    if not shards:
        return dict(source.layouts)
    layouts = dict(source.layouts)
    for name in source.parameter_names:
        layout = layouts[name]
        dim = dp_shard_dim(layout.tp_shape(mesh.tp), layout.tp_dim, mesh.dp)
        layouts[name] = replace(layout, dp_dim=dim)
    return layouts


def _units(paths: Sequence[str], names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The parameter names of every unit, and at last of the root (path ``""``)."""
    rest = list(names)
    for path in paths:
        yield path, [name for name in rest if name.startswith(f"{path}.")]
        rest = [name for name in rest if not name.startswith(f"{path}.")]
    yield "", rest
