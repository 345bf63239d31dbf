"""Plans against the best standard recipe, by the same cost model.

``python -m benchmarks.against_recipes --models llama3-8b gpt2 --gpus 8 64`` prints a row for each
model, cluster and number of GPUs as soon as it is planned; without options every model of the zoo,
8, 64 and 512 GPUs. What cannot run yet is planned too unless ``--runnable``.
The last column is what planning took of the processor, tracing left out: a model is traced once.
Ends with 1 where a recipe is faster than its plan.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autoplan import zoo
from autoplan.errors import AutoplanError, InfeasibleError
from autoplan.job import Job, ModelSource
from autoplan.plan import Alternative
from autoplan.search.pipeline.standard import RUNNER_UP
from autoplan.search.planner import plan_job
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from hardware_profiles.load import load
from hardware_profiles.spec import ClusterSpec

GPUS = (8, 64, 512)
CLUSTERS = ("dgx-a100-80g", "dgx-h100")
_TOKENS = 2**22
_SAMPLES = 2**10


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One plan beside the best recipe that fits; seconds are None where nothing fits."""

    model: str
    cluster: str
    gpus: int
    step_s: float | None
    recipe: Alternative | None
    gap: float
    cpu_s: float

    @property
    def ratio(self) -> float | None:
        """Seconds of the recipe over those of the plan."""
        if self.step_s is None or self.recipe is None or self.recipe.step_s is None:
            return None
        return self.recipe.step_s / self.step_s


def batch_of(seq_len: int | None, gpus: int) -> int:
    """Samples of a step: four million tokens, or 1,024 images; as many on each GPU."""
    samples = _TOKENS // seq_len if seq_len else _SAMPLES
    return gpus * max(1, samples // gpus)


def compared(
    name: str, graph: OpGraph, seq_len: int | None, cluster: ClusterSpec, gpus: int, runnable: bool
) -> Row:
    """Plans one model for one number of GPUs."""
    job = Job(
        model=ModelSource(kind="zoo", name=name, seq_len=seq_len),
        cluster=cluster.name,
        nodes=max(1, gpus // cluster.gpus_per_node),
        gpus_per_node=min(gpus, cluster.gpus_per_node),
        global_batch=batch_of(seq_len, gpus),
        planned_only=not runnable,
    )
    started_s = time.process_time()
    try:
        plan = plan_job(graph, job, cluster)
    except InfeasibleError:
        plan = None
    fitting = [] if plan is None else [other for other in plan.alternatives if other.fits]
    recipes = [other for other in fitting if not other.name.startswith(RUNNER_UP)]
    return Row(
        model=name,
        cluster=job.cluster,
        gpus=gpus,
        step_s=plan.estimate.step_s if plan else None,
        recipe=min(recipes, key=lambda other: other.step_s or 0.0, default=None),
        gap=plan.search.gap if plan else 0.0,
        cpu_s=time.process_time() - started_s,
    )


def rows(models: Sequence[str], gpus: Sequence[int], runnable: bool) -> Iterator[Row]:
    """Rows in order; a model that cannot be planned is told on stderr and left out."""
    import torch

    for name in models:
        try:
            case = zoo.build(name, None)
            graph = capture(case.model, case.example_inputs, dtype=torch.bfloat16)
            for cluster in map(load, CLUSTERS):
                for count in gpus:
                    yield compared(name, graph, case.seq_len, cluster, count, runnable)
        except AutoplanError as error:
            print(f"{name}: {error}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description="Plans against the standard recipes")
    parser.add_argument("--models", nargs="+", default=list(zoo.names()), metavar="NAME")
    parser.add_argument("--gpus", nargs="+", type=int, default=list(GPUS), metavar="N")
    parser.add_argument("--runnable", action="store_true", help="only what can run")
    given = parser.parse_args()
    print(f"{'model':16} {'cluster':12} {'GPUs':>5} {'step s':>8} | {'best recipe':24} "
          f"{'step s':>8} {'ratio':>6} | {'gap':>6} {'CPU s':>6}")  # fmt: skip
    slower = 0
    for row in rows(given.models, given.gpus, given.runnable):
        ours = "none" if row.step_s is None else f"{row.step_s:.4g}"
        name = row.recipe.name if row.recipe else "none fits"
        theirs = f"{row.recipe.step_s:.4g}" if row.recipe else ""
        ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
        print(f"{row.model:16} {row.cluster:12} {row.gpus:5} {ours:>8} | {name:24} {theirs:>8} "
              f"{ratio:>6} | {row.gap:6.2%} {row.cpu_s:6.1f}", flush=True)  # fmt: skip
        slower += row.ratio is not None and row.ratio < 1
    if slower:
        raise SystemExit(f"{slower} plans are slower than a recipe")


if __name__ == "__main__":
    main()
