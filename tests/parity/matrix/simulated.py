"""The matrix on simulated ranks: threads for tp, the rest of the mesh one after another.

Here every operator has a placement drawn at random, where on processes models are split as by hand.
Sums over ranks of dp are made by the simulation, so that ZeRO and replicas are not part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from autoplan.errors import AutoplanError
from autoplan.plan import StagePlan
from autoplan.runtime.comparison import LOSS_RTOL, RTOL
from autoplan.trace.graph import OpGraph
from autoplan.trace.stack import stack_of
from tests.distributed.cases import lowest_dtype
from tests.parity.again import random_again
from tests.parity.choose import random_program
from tests.parity.matrix.cells import Cell, share
from tests.parity.matrix.families import FAMILIES, case
from tests.parity.simulate import Outcome, sharded
from tests.parity.stages import stages_at

DP_IS_NOT_SIMULATED = "statistics of the batch need ranks of dp that meet, as on processes"


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """Degrees of a simulated program.

    Attributes:
        stages: of a pipeline; 0 for none.
        blocks_again: whether all blocks run again in the backward.
        operators_again: whether operators drawn at random do.
    """

    dp: int = 1
    tp: int = 1
    microbatches: int = 2
    stages: int = 0
    blocks_again: bool = False
    operators_again: bool = False


MESHES = {
    "dp2": Mesh(dp=2),
    "tp2": Mesh(tp=2),
    "tp4, blocks again": Mesh(tp=4, blocks_again=True),
    "dp4 x tp2": Mesh(dp=4, tp=2, microbatches=1),
    "dp2 x tp4, operators again": Mesh(dp=2, tp=4, operators_again=True),
    "pp2": Mesh(stages=2, microbatches=4),
    "pp2 x dp2, operators again": Mesh(stages=2, dp=2, operators_again=True),
    "pp2 x tp2, blocks again": Mesh(stages=2, tp=2, blocks_again=True),
    "pp2 x dp2 x tp2": Mesh(stages=2, dp=2, tp=2),
    "pp4 x tp4, operators again": Mesh(stages=4, tp=4, microbatches=4, operators_again=True),
}


def simulate_family(family: str, names: Sequence[str]) -> dict[str, Cell]:
    """The cells of a family on simulated ranks; weights are not stepped."""
    return {name: _cell(family, name) for name in names}


@cache
def _truth(family: str) -> Outcome:
    return case(family).truth()


def _cell(family: str, name: str) -> Cell:
    mesh, tested = MESHES[name], case(family)
    normed = FAMILIES[family].norms_the_batch
    if normed and mesh.dp > 1:
        return Cell(refused=DP_IS_NOT_SIMULATED)
    items = len(stack_of(tested.graph).items)
    if mesh.stages > items:
        return Cell(refused=f"{mesh.stages} stages of a model that can be cut into {items}")
    seed = list(MESHES).index(name)
    try:
        emitted = random_program(
            tested.graph,
            mesh.tp,
            seed,
            dp=mesh.dp,
            num_microbatches=1 if normed else mesh.microbatches,
            recomputed=frozenset(b.path for b in tested.graph.blocks if mesh.blocks_again),
            stages=_stages(tested.graph, mesh.stages),
            again=random_again(tested.graph, seed) if mesh.operators_again else None,
        )
    except AutoplanError as error:
        return Cell(refused=str(error))
    found, expected = sharded(emitted, tested.model, tested.batch), _truth(family)
    lowest = lowest_dtype(tested.graph)
    return Cell(
        loss=abs(float(found.loss - expected.loss)) / abs(float(expected.loss)),
        gradients=share(found.gradients, expected.gradients, lowest),
        allowed=RTOL[lowest],
        allowed_loss=LOSS_RTOL[lowest],
    )


def _stages(graph: OpGraph, count: int) -> tuple[StagePlan, ...]:
    """Stages of about as many items of the model each."""
    items = len(stack_of(graph).items)
    return stages_at(graph, [index * items // count for index in range(count)]) if count else ()
