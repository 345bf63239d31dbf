"""From a graph and a plan to emitted source: placements, lowering, checking, printing."""

from __future__ import annotations

from autoplan.codegen.again import again_of
from autoplan.codegen.checks import check_statistics, needs_whole_batch
from autoplan.codegen.choices import Choices
from autoplan.codegen.emit import source_of
from autoplan.codegen.emitted import (
    BatchInput,
    Count,
    Emitted,
    EmittedStage,
    Output,
    StoredTensor,
)
from autoplan.codegen.header import header
from autoplan.codegen.lower import lower
from autoplan.codegen.messages import stage_messages
from autoplan.codegen.program import DRAWS, Program
from autoplan.codegen.units import unit_paths
from autoplan.codegen.verify import verify
from autoplan.errors import PlanError
from autoplan.plan import Plan
from autoplan.sharding.assignment import assign
from autoplan.sharding.batch import batch_layout
from autoplan.sharding.placement import Replicate, Shard
from autoplan.sharding.rules.batch_norm import local_statistics
from autoplan.trace.graph import OpGraph


def emit_program(graph: OpGraph, plan: Plan) -> Emitted:
    """The sharded program of ``plan``.

    Raises:
        PlanError: when the plan does not belong to the graph.
        UnsupportedModelError: when the model cannot run correctly in this mesh.
    """
    graph = graph.at_batch(plan.job.global_batch)
    pieces = plan.mesh.dp * plan.num_microbatches
    if plan.microbatch * pieces != graph.batch:
        raise PlanError(
            f"{pieces} microbatches of {plan.microbatch} samples are no global batch of "
            f"{graph.batch}; plan this job again"
        )
    if plan.fingerprint != graph.fingerprint:
        raise PlanError("the plan belongs to another model (fingerprints differ); plan this one")
    return emit_choices(choices_of(graph, plan), plan.job.model.name)


def choices_of(graph: OpGraph, plan: Plan) -> Choices:
    """What a plan decides about a graph, at the plan's global batch.

    Raises:
        PlanError: naming what the plan misses, has too much, or cannot hold.
    """
    graph = graph.at_batch(plan.job.global_batch)
    return Choices(
        graph=graph,
        assignment=assign(graph, plan.regions, plan.mesh.tp),
        layout=batch_layout(graph),
        dp=plan.mesh.dp,
        num_microbatches=plan.num_microbatches,
        tp=plan.mesh.tp,
        recomputed=frozenset(path for region in plan.regions for path in region.recomputed),
        stages=plan.stages,
        again=again_of(graph, plan.regions),
    )


def emit_choices(choices: Choices, model: str) -> Emitted:
    """The program of these choices; ``model`` is the name that its header gives."""
    graph, program = choices.graph, lower(choices)
    verify(program)
    stored = {
        kind: {
            node.target: StoredTensor(meta=node.outputs[0], placement=choices.storage(node.name))
            for node in graph.of_kind(kind)
        }
        for kind in ("parameter", "buffer")
    }
    return Emitted(
        source=source_of(program, header(choices, model)),
        stages=_stages(choices, program),
        parameters=stored["parameter"],
        buffers=stored["buffer"],
        inputs=tuple(
            BatchInput(target=node.target, meta=node.outputs[0]) for node in graph.of_kind("input")
        ),
        counts=tuple(Count(node=ref.node, meta=graph.meta(ref)) for ref in choices.hoisted),
        loss_dtype=graph.meta(graph.output).dtype,
        dp=choices.dp,
        num_microbatches=choices.num_microbatches,
        tp=choices.tp,
        outputs=_outputs(choices) if choices.evaluates else (),
        whole_batch=needs_whole_batch(choices) if choices.evaluates else None,
    )


def _outputs(choices: Choices) -> tuple[Output, ...]:
    """What an evaluation returns; in one piece, a sum over the batch is as it is."""
    placements = ((ref, choices.layout.placements[ref]) for ref in choices.graph.results)
    return tuple(
        Output(
            shape=choices.shape(ref, Replicate()),
            dtype=choices.graph.meta(ref).dtype,
            batch_dim=placement.dim if isinstance(placement, Shard) else None,
            parts=placement.parts if isinstance(placement, Shard) else 1,
        )
        for ref, placement in placements
    )


def _stages(choices: Choices, program: Program) -> tuple[EmittedStage, ...]:
    """The stages; what nothing reads is kept by the first."""
    ranks = [stage.rank for stage in choices.stages] or [0]
    moved = local_statistics(choices.graph)
    check_statistics(moved, program)
    read = frozenset[str]().union(*(stage.tensors for stage in program.stages))
    units = unit_paths(choices.graph)
    names = {
        kind: [node.target for node in choices.graph.of_kind(kind)]
        for kind in ("parameter", "buffer")
    }

    def held(index: int, kind: str) -> tuple[str, ...]:
        own = program.stages[index].tensors
        keeps = index == 0 and not choices.evaluates
        return tuple(name for name in names[kind] if name in own or (keeps and name not in read))

    return tuple(
        EmittedStage(
            root_class=stage.name,
            rank=ranks[index],
            block_classes={path: program.class_of[path] for path in stage.blocks},
            unit_paths=tuple(path for path in units if path in stage.blocks),
            parameters=held(index, "parameter"),
            buffers=held(index, "buffer"),
            inputs=stage.inputs,
            receives=stage.receives,
            sends=stage.sends,
            draws_before={
                path: number
                for path, number in choices.draws_before.items()
                if path in stage.blocks
            },
            takes_draws=DRAWS in stage.forward.inputs,
            messages=stage_messages(program, index, {"dp": choices.dp, "tp": choices.tp}),
            averaged=tuple(name for name in held(index, "buffer") if name in moved),
        )
        for index, stage in enumerate(program.stages)
    )
