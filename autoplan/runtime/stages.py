"""The pipeline stages that this rank runs; without a pipeline there is one, the whole model.

A parameter that several stages read is held by each rank that runs one of them. Stages of one rank
share it; copies on several ranks start alike and get the same summed gradient, so they stay alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autoplan.capabilities import sums_in_backward, zero_stage
from autoplan.codegen.build import build_module
from autoplan.codegen.emitted import Emitted, EmittedStage
from autoplan.errors import PlanError
from autoplan.runtime.collectives import AxisGroup
from autoplan.runtime.compiled import compile_program
from autoplan.runtime.data_parallel import DataParallel, shards_states, units
from autoplan.runtime.direct_calls import DIRECT_ATEN
from autoplan.runtime.gradients import GradientSum
from autoplan.runtime.layout import ParameterLayout, dp_shard_dim
from autoplan.runtime.mesh import RankMesh
from autoplan.runtime.random import Draws
from autoplan.runtime.weights import WeightSource

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class LocalStage:
    """A stage of this rank: its number among all, its program and its parameters."""

    index: int
    emitted: EmittedStage
    program: Any
    data_parallel: DataParallel

    def count(self, inputs: Inputs) -> Inputs:
        """The terms of one microbatch of the values that the stage needs counted."""
        return self.program.count(*self._own(inputs))

    def forward(self, received: Inputs, inputs: Inputs, counts: Inputs, draws: Draws | None) -> Any:
        """What the stage sends, or the term of the loss.

        Args:
            inputs: all inputs of the model, of one microbatch.
            draws: what its dropouts draw by; None where they drop nothing.
        """
        given = {"draws": draws} if self.emitted.takes_draws else {}
        return self.program(*received, *self._own(inputs), counts=counts, **given)

    def _own(self, inputs: Inputs) -> Inputs:
        return tuple(inputs[index] for index in self.emitted.inputs)


def build_stages(
    emitted: Emitted,
    source: WeightSource,
    buffers: Mapping[str, Tensor],
    *,
    axes: Mapping[str, AxisGroup],
    layouts: Mapping[str, ParameterLayout],
    zero: int,
    mesh: RankMesh,
    compute_dtype: torch.dtype | None,
    compiler: str | None,
) -> list[LocalStage]:
    """This rank's stages with their weights.

    Every rank takes part in handing out the weights of every stage, in the same order.

    Args:
        compiler: backend of ``torch.compile`` for their programs; None runs them eagerly.

    Raises:
        PlanError: on every rank, when a rank of the pipeline has no parameters to optimize.
    """
    idle = set(range(mesh.pp)) - {stage.rank for stage in emitted.stages if stage.parameters}
    if idle:
        raise PlanError(
            f"rank {min(idle)} of the pipeline has no parameters, so that no optimizer can be "
            "built there: give it a block, or plan with a lower pp"
        )
    found: list[LocalStage] = []
    held: dict[str, nn.Parameter] = {}
    for index, stage in enumerate(emitted.stages):
        if stage.rank != mesh.pp_rank:
            for _, names in units(stage):
                for name in names:
                    source.parameter(name)
            continue
        program = build_module(
            emitted,
            stage,
            source.placeholder,
            buffers.__getitem__,
            axes,
            aten=DIRECT_ATEN if compiler is None else torch.ops.aten,
        )
        if compiler is not None:
            compile_program(program, stage, compiler)
        data_parallel = DataParallel(
            program,
            source,
            stage,
            layouts=layouts,
            held=held,
            zero=zero,
            mesh=mesh,
            compute_dtype=compute_dtype,
        )
        held |= data_parallel.parameters
        found.append(
            LocalStage(index=index, emitted=stage, program=program, data_parallel=data_parallel)
        )
    return found


def layouts_on_dp(
    emitted: Emitted, source: WeightSource, zero: int, mesh: RankMesh
) -> dict[str, ParameterLayout]:
    """Where every parameter and buffer of the model lies, with the split of ``dp``.

    A parameter that two stages of one rank read stays whole: it would need two FSDP roots.
    """
    layouts = dict(source.layouts)
    if not _shards_states(zero, mesh):
        return layouts
    readers = Counter((stage.rank, name) for stage in emitted.stages for name in stage.parameters)
    doubled = {name for (_, name), count in readers.items() if count > 1}
    for name in emitted.parameters:
        layout = layouts[name]
        if name not in doubled:
            dim = dp_shard_dim(layout.tp_shape(mesh.tp), layout.tp_dim, mesh.shards)
            layouts[name] = replace(layout, dp_dim=dim)
    return layouts


def parameters_of(
    stages: Sequence[LocalStage], layouts: Mapping[str, ParameterLayout]
) -> dict[str, nn.Parameter]:
    """What this rank's optimizer steps, in the model's order."""
    found: dict[str, nn.Parameter] = {}
    for stage in stages:
        found |= stage.data_parallel.parameters
    return {name: found[name] for name in layouts if name in found}


def gradient_sum(
    stages: Sequence[LocalStage],
    parameters: Mapping[str, nn.Parameter],
    layouts: Mapping[str, ParameterLayout],
    mesh: RankMesh,
    *,
    zero: int,
) -> GradientSum:
    """Sums what this rank's stages hold whole on ``dp``, or share with stages of other ranks.

    Args:
        parameters: of this rank.
        layouts: of the parameters of all ranks.
    """
    whole = {name for stage in stages for name in stage.data_parallel.whole}
    places = {layout.pp_ranks for layout in layouts.values() if len(layout.pp_ranks) > 1}
    shared: list[tuple[dist.ProcessGroup, list[nn.Parameter]]] = []
    for pp_ranks in sorted(places):
        group = _group(pp_ranks, mesh)
        if group is not None:
            read = [p for name, p in parameters.items() if layouts[name].pp_ranks == pp_ranks]
            shared.append((group, read))
    return GradientSum(
        [parameter for name, parameter in parameters.items() if name in whole],
        mesh,
        shared,
        overlaps=sums_in_backward(
            pipeline=mesh.pp > 1,
            shards_states=_shards_states(zero, mesh),
            sends_on_dp=any(
                message.axis == "dp"
                for stage in stages
                for message in stage.emitted.messages.backward
            ),
        ),
    )


def _shards_states(zero: int, mesh: RankMesh) -> bool:
    return shards_states(zero_stage(zero, pipeline=mesh.pp > 1, accumulates=True), mesh)


def _group(pp_ranks: tuple[int, ...], mesh: RankMesh) -> dist.ProcessGroup | None:
    """The process group of this rank with its peers at these places on ``pp``, if it is at one.

    All ranks call for the groups of all, since PyTorch names groups by how many calls there were.
    """
    if len(pp_ranks) == mesh.pp:
        return mesh.group("pp")
    rows = [
        replace(mesh, dp_rank=dp_rank, tp_rank=tp_rank)
        for dp_rank in range(mesh.dp)
        for tp_rank in range(mesh.tp)
    ]
    own, _ = dist.new_subgroups_by_enumeration(
        [[row.rank_at(pp_rank) for pp_rank in pp_ranks] for row in rows]
    )
    return own if isinstance(own, dist.ProcessGroup) else None
