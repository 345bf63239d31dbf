"""The program of a model without its loss, on the modules of a plan's program with it.

Every stage and block of the plan is there as far as these outputs need it, with the parameters
that the plan gave it: what reads others could not find them, or would find the pieces that ZeRO
left. The plan's placements are kept where the model does the same (``sharding.following``).
"""

from __future__ import annotations

from dataclasses import replace

from autoplan.codegen.choices import Choices
from autoplan.codegen.emitted import Emitted, EmittedStage
from autoplan.codegen.pipeline import emit_choices
from autoplan.errors import UnsupportedModelError
from autoplan.sharding.batch import batch_layout
from autoplan.sharding.following import follow, follow_stages
from autoplan.sharding.stages import stage_starts
from autoplan.trace.graph import OpGraph, Ref
from autoplan.trace.stack import stack_of


def emit_evaluation(graph: OpGraph, chosen: Choices, trained: Emitted, model: str) -> Emitted:
    """The program, for microbatches of the same size.

    Args:
        graph: of the model without its loss (``trace.outputs``).
        chosen: for the graph with the loss.
        trained: the program of these.
        model: the name that its header gives.

    Raises:
        UnsupportedModelError: when the outputs cannot be computed on these stages, or in parts of
            the batch.
    """
    graph = graph.at_batch(chosen.graph.batch)
    stack = stack_of(chosen.graph)
    choices = replace(
        chosen,
        graph=graph,
        assignment=follow(graph, chosen.assignment, chosen.graph.blocks, chosen.tp),
        layout=batch_layout(graph),
        recomputed=frozenset(),
        again={},
        evaluates=True,
        starts=follow_stages(stack_of(graph), stack, stage_starts(stack, chosen.stages)),
    )
    emitted = emit_choices(choices, model)
    for stage, held in zip(emitted.stages, trained.stages, strict=True):
        _check_held(graph, stage, held)
    return emitted


def _check_held(graph: OpGraph, stage: EmittedStage, held: EmittedStage) -> None:
    """A stage reads what it holds, and what a unit of ZeRO gathers is read inside of it alone."""
    absent = {*stage.parameters, *stage.buffers} - {*held.parameters, *held.buffers}
    if absent:
        raise UnsupportedModelError(
            f"without the loss, {min(absent)} is read in {stage.root_class}, a stage that does not "
            "hold it; evaluate a checkpoint under a plan with pp = 1"
        )
    for name in stage.parameters:
        unit = next((path for path in held.unit_paths if name.startswith(f"{path}.")), None)
        for reader in graph.readers.get(Ref(name), ()):
            block = graph.block_of.get(reader)
            if unit is not None and (block is None or block.path != unit):
                raise UnsupportedModelError(
                    f"without the loss, {reader} reads {name} from outside of {unit}; evaluate a "
                    "checkpoint under a plan with zero = 0"
                )
