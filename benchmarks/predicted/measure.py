"""Plans a pair, trains by the plan on processes of this machine, and sets both side by side."""

from __future__ import annotations

import json
from dataclasses import asdict

import torch

import autoplan
from autoplan.plan import Plan
from autoplan.verification.processes import run_ranks
from benchmarks.predicted.models import SUBJECTS
from benchmarks.predicted.pairs import Pair, plan_of
from benchmarks.predicted.rows import Row

_DEADLINE_S = 120.0


def measured(pair: Pair, cluster: str, steps: int) -> Row:
    """One pass over a pair.

    Raises:
        RuntimeError: with what a rank raised.
    """
    torch.set_num_threads(1)
    plan = plan_of(pair, cluster)
    endings = run_ranks(lambda _: _on_rank(pair, plan, steps), pair.ranks, deadline_s=_DEADLINE_S)
    for rank, ending in enumerate(endings):
        if not ending.ok:
            raise RuntimeError(f"{pair.name}: rank {rank}: {ending.error or 'died or hung'}")
    found = json.loads(endings[0].result)
    stages = [plan.estimate.stages[rank["pp_rank"]].memory for rank in found["ranks"]]
    return Row(
        pair=pair.name,
        cluster=cluster,
        other_load=found["other_load"] or 0.0,
        predicted_s=plan.estimate.step_s,
        measured_s=found["step_s"]["median_s"],
        low_s=found["step_s"]["low_s"],
        high_s=found["step_s"]["high_s"],
        predicted_bytes=tuple(memory.total - memory.workspace for memory in stages),
        measured_bytes=tuple(rank["peak_bytes"] for rank in found["ranks"]),
    )


def _on_rank(pair: Pair, plan: Plan, steps: int) -> bytes:
    subject = SUBJECTS[pair.model]
    batch = subject.batch()
    module = autoplan.compile(subject.build(), batch, plan=plan)
    return json.dumps(asdict(module.measure(module.shard_batch(batch), steps))).encode()
