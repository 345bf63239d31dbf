"""The tiny twin of every model of the zoo, trained under several plans and on one device.

A twin has the published model's own config but for its sizes, its dropout included. It is trained
for three steps of Adam on processes, each step on another batch: losses, gradients of the first
step, and weights and buffers after the last are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from autoplan.runtime.parallelize import parallelize
from autoplan.runtime.reference_dropout import reference_dropout
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from autoplan.zoo.presets import PRESETS
from tests.distributed.cases import lowest_dtype
from tests.distributed.harness import run_ranks
from tests.distributed.parity import full
from tests.distributed.training import Run, make_optimizer, train_alone, train_parallel
from tests.families import random_batch, real, tiny
from tests.parity.matrix.cells import Cell, compared, worst
from tests.parity.matrix.families import ROWS
from tests.parity.matrix.ways import Way, plan_for, refusal_of

RANKS, STEPS, SEED = 4, 3, 11
DEADLINE_S = 900

TWIN_WAYS = {
    "dp4, ZeRO 3": Way(dp=4, zero=3),
    "tp4": Way(tp=4),
    "dp2 x tp2, ZeRO 1": Way(dp=2, tp=2, zero=1),
    "pp2 x dp2": Way(pp=2, dp=2, stages=2, schedule="1f1b"),
}
UNCUT = "dp4 in 2 replicas, ZeRO 2", Way(dp=4, zero=2, replicas=2)
"""Instead of the pipeline, for models that cannot have one."""


@dataclass(frozen=True)
class _Twin:
    build: Callable[[], nn.Module]
    batches: list[dict[str, Tensor]]
    graph: OpGraph
    norms_the_batch: bool


def run_twin(name: str) -> dict[str, Cell]:
    """The cells of the twin of a model, by way; plans of tp are split as people would by hand."""
    twin = _twin(name)
    ways = {way: _fitting(twin, settings) for way, settings in TWIN_WAYS.items()}
    refused = {way: _refusal(twin, settings) for way, settings in ways.items()}
    if refused["pp2 x dp2"]:
        del ways["pp2 x dp2"]
        ways[UNCUT[0]] = _fitting(twin, UNCUT[1])
        refused[UNCUT[0]] = _refusal(twin, UNCUT[1])
    cells = {way: Cell(refused=reason) for way in ways if (reason := refused[way])}
    left = {way: settings for way, settings in ways.items() if way not in cells}
    alone = _alone(twin)
    ranks = run_ranks(_trained, RANKS, twin, left, alone, deadline_s=DEADLINE_S)
    return cells | {way: worst([rank[way] for rank in ranks]) for way in left}


def _twin(name: str) -> _Twin:
    dropout: dict[str, Any] = dict(PRESETS[name].dropout)
    subject = tiny(name, **dropout)

    def build() -> nn.Module:
        return real(name, **dropout)

    torch.manual_seed(1)
    batches = [random_batch(subject, ROWS, torch.float64) for _ in range(STEPS)]
    graph = capture(build(), batches[0])
    normed = any("batch_norm" in node.target for node in graph.of_kind("call"))
    return _Twin(build, batches, graph, normed)


def _fitting(twin: _Twin, way: Way) -> Way:
    """The way, with the batch in one piece where statistics are taken over it."""
    return replace(way, microbatches=1) if twin.norms_the_batch else way


def _refusal(twin: _Twin, way: Way) -> str | None:
    return refusal_of(twin.graph, lambda: plan_for(twin.graph, way))


def _alone(twin: _Twin) -> Run:
    model = twin.build()
    optimizer = make_optimizer("adamw", model.parameters())
    steps = []
    for step, batch in enumerate(twin.batches):
        with reference_dropout(seed=SEED, step=step):
            steps.append(train_alone(model, [batch], optimizer))
    buffers = {name: full(value) for name, value in model.named_buffers()}
    return Run(
        losses=[loss for run in steps for loss in run.losses],
        gradients=steps[0].gradients,
        weights=steps[-1].weights | buffers,
    )


def _trained(rank: int, twin: _Twin, ways: dict[str, Way], alone: Run) -> dict[str, Cell]:
    return {name: _cell(twin, way, alone) for name, way in ways.items()}


def _cell(twin: _Twin, way: Way, alone: Run) -> Cell:
    pm = parallelize(twin.build(), twin.graph, plan_for(twin.graph, way), seed=SEED)
    got = train_parallel(pm, twin.batches, make_optimizer("adamw", pm.parameters()))
    got.weights |= {n: full(v) for n, v in pm.named_buffers() if n in alone.weights}
    return compared(got, alone, lowest_dtype(twin.graph))
