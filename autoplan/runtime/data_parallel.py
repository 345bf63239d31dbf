"""Data parallelism by ZeRO stage, on PyTorch's FSDP2.

``autoplan.capabilities.ZERO_STAGES`` says what each stage holds and sends; this module makes FSDP2
do that. Gradients are summed over ``dp``, never averaged: every rank computes its term of the
global loss. Stage 0 and a single data-parallel rank need no FSDP: the parameters stay whole, and
``gradients.GradientSum`` sums them once a step. In a mixed precision plan whole parameters are
stored in float32 and lent to the program in the lower precision, forward by forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard as DShard

from autoplan.capabilities import ZERO_STAGES, ZeroStage
from autoplan.runtime.gradients import GradientSum
from autoplan.runtime.layout import ParameterLayout, dp_shard_dim
from autoplan.runtime.mesh import RankMesh
from autoplan.runtime.weights import MASTER_DTYPE, Weights


class DataParallel:
    """The parameters of one rank under one ZeRO stage, and what a step does to them.

    Attributes:
        parameters: what the optimizer steps, by original name.
        layouts: which piece of each this rank holds.
        gradient_sum: of the parameters that this stage leaves whole on ``dp``.
    """

    def __init__(
        self,
        program: nn.Module,
        weights: Weights,
        *,
        unit_paths: Sequence[str],
        zero: int,
        mesh: RankMesh,
        compute_dtype: torch.dtype | None,
    ) -> None:
        self._program = program
        self._stage: ZeroStage = ZERO_STAGES[zero]
        self._compute_dtype = compute_dtype
        dp_dims = _dp_dims(weights, mesh) if self._stage.shards_states else {}
        whole = {
            name: parameter
            for name, parameter in weights.parameters.items()
            if dp_dims.get(name) is None
        }
        self._lent = _slots(program, whole.values()) if compute_dtype else []
        self.layouts = {
            name: ParameterLayout(
                shape=layout.shape, tp_dim=layout.tp_dim, dp_dim=dp_dims.get(name)
            )
            for name, layout in weights.layouts.items()
        }
        self.gradient_sum = GradientSum(whole.values(), mesh)
        self.parameters = dict(weights.parameters)
        for module, name, _ in self._lent:
            delattr(module, name)
        if len(whole) < len(weights.parameters):
            placed = {
                parameter: dim
                for name, parameter in weights.parameters.items()
                if (dim := dp_dims[name]) is not None
            }
            self._shard(placed, set(whole.values()), unit_paths, mesh)
            self.parameters = _sharded(program, weights, whole)

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

    def abandon(self) -> None:
        """Returns to a state in which a step can begin, after one that failed."""
        self.gradient_sum.abandon()
        if isinstance(self._program, FSDPModule):
            self._program.reset_iter_state()

    def _shard(
        self,
        placed: Mapping[nn.Parameter, int],
        whole: set[nn.Parameter],
        unit_paths: Sequence[str],
        mesh: RankMesh,
    ) -> None:
        policy = MixedPrecisionPolicy(cast_forward_inputs=False)
        if self._compute_dtype is not None:
            policy = MixedPrecisionPolicy(
                param_dtype=self._compute_dtype,
                reduce_dtype=MASTER_DTYPE,
                cast_forward_inputs=False,
            )
        units = [self._program.get_submodule(path) for path in unit_paths]
        for unit in (*units, self._program):
            fully_shard(
                unit,
                mesh=mesh.axis("dp"),
                reshard_after_forward=not self._stage.keeps_weights,
                shard_placement_fn=lambda parameter: DShard(placed[parameter]),
                mp_policy=policy,
                ignored_params=whole,
            )
            assert isinstance(unit, FSDPModule)
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)


def _dp_dims(weights: Weights, mesh: RankMesh) -> dict[str, int | None]:
    if mesh.dp == 1:
        return {}
    dims = {}
    for name in weights.parameters:
        layout = weights.layouts[name]
        dims[name] = dp_shard_dim(layout.tp_shape(mesh.tp), layout.tp_dim, mesh.dp)
    return dims


def _slots(
    program: nn.Module, parameters: Iterable[nn.Parameter]
) -> list[tuple[nn.Module, str, nn.Parameter]]:
    """Where the program reads floating-point ``parameters``: module, attribute, parameter."""
    wanted = {id(parameter) for parameter in parameters}
    return [
        (module, name, parameter)
        for module in program.modules()
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
        if id(parameter) in wanted and parameter.is_floating_point()
    ]


def _sharded(
    program: nn.Module, weights: Weights, whole: Mapping[str, Tensor]
) -> dict[str, nn.Parameter]:
    """All parameters in the model's order, the sharded ones as FSDP2 now registers them."""
    registered = dict(program.named_parameters(remove_duplicate=False))
    return {
        name: parameter if name in whole else registered[name]
        for name, parameter in weights.parameters.items()
    }
