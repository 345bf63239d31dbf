"""Plans against what people ran, and predictions among what they swept.

``python -m benchmarks.against_published`` goes through the published runs of ``data/training.csv``
that state their whole configuration and whose model can be built from its sizes. Each is priced
twice by the cost model that plans: the configuration of the run, as pins, and the best plan for the
same model, cluster and batch. Ends with 1 where the run's configuration is faster than the plan by
more than what a search leaves open.

``--sweeps`` tells instead, for each source with sweeps, in how many groups of runs of the same work
the one that is predicted to be the fastest was measured within 3 % of the fastest.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from autoplan.errors import AutoplanError, PlanError
from autoplan.job import Job, ModelSource, Pins
from autoplan.search.pipeline.solve import TOLERANCE
from autoplan.search.planner import plan_priced
from autoplan.search.pricing import Pricing
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from autoplan.validation.predict import Prediction, predictions_of
from autoplan.validation.published.rows import read_rows
from autoplan.validation.scores import by_set, fixed_work, regret
from autoplan.validation.setups.setup import Setup
from autoplan.validation.setups.transformer import Transformer
from autoplan.zoo.plain import plain
from hardware_profiles.load import load

DATA = Path(__file__).parent / "data"
NEAR = 0.03
_RECOMPUTED = {"none": "none", "block": "full"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A run's configuration beside the plan, both priced as plans are."""

    id: str
    setup: Setup
    theirs_s: float
    ours_s: float

    @property
    def ratio(self) -> float:
        return self.theirs_s / self.ours_s


def complete(sets: Sequence[str]) -> list[Prediction]:
    """The runs that state everything and were timed, of some sets or all."""
    rows = [
        row
        for row in read_rows(DATA / "training.csv").rows
        if row.complete and row.scored and row.step_time_s and (not sets or row.set in sets)
    ]
    return [each for each in predictions_of(rows) if each.setup and not each.setup.layer_only]


def fields_of(model: Transformer, seq_len: int) -> tuple[str, dict[str, object]]:
    """The transformers config that has a row's sizes.

    Raises:
        PlanError: no plain decoder has them.
    """
    if model.experts:
        raise PlanError("experts are not built from sizes")
    if not model.rotary and model.ffn == 4 * model.hidden and model.tied:
        return "gpt2", {
            "vocab_size": model.vocab, "n_positions": seq_len, "n_embd": model.hidden,
            "n_layer": model.layers, "n_head": model.heads,
        }  # fmt: skip
    if model.rotary and model.gated and not model.biases:
        return "llama", {
            "vocab_size": model.vocab, "hidden_size": model.hidden,
            "intermediate_size": model.ffn, "num_hidden_layers": model.layers,
            "num_attention_heads": model.heads, "num_key_value_heads": model.kv_heads,
            "head_dim": model.head_dim, "max_position_embeddings": seq_len,
            "rms_norm_eps": 1e-5, "tie_word_embeddings": model.tied,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        }  # fmt: skip
    raise PlanError("no plain decoder has these sizes")


@lru_cache(maxsize=2)
def graph_of(model: Transformer, seq_len: int, dropout: bool) -> OpGraph:
    """The traced model of a row; runs of the same model share it."""
    import torch

    kind, fields = fields_of(model, seq_len)
    if kind == "gpt2" and not dropout:
        fields |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    case = plain(kind, fields, seq_len, origin="a published run")
    if case is None:
        raise PlanError("no plain decoder has these sizes")
    return capture(case.model, case.example_inputs, dtype=torch.bfloat16)


def pins_of(setup: Setup) -> Pins:
    """The run's configuration.

    Raises:
        PlanError: it is none that is searched.
    """
    if setup.cp > 1 or setup.ep > 1:
        raise PlanError("context and expert parallelism are not searched")
    if setup.tuning != "all" or setup.quantised:
        raise PlanError("not all weights are trained")
    return Pins(
        pp=setup.pp,
        dp=setup.dp,
        tp=setup.tp,
        zero=setup.zero if setup.dp > 1 else 0,
        microbatch=setup.microbatch,
        schedule=setup.schedule if setup.pp > 1 else "none",
        stages_per_rank=setup.virtual_stages,
        recompute=_RECOMPUTED.get(setup.recompute),  # pyright: ignore[reportArgumentType]
        replicas=setup.replicas,
    )


def job_of(setup: Setup) -> Job:
    """The same work without pins."""
    return Job(
        model=ModelSource(kind="object", name="published", seq_len=setup.seq_len),
        cluster=setup.cluster,
        nodes=setup.gpus // setup.gpus_per_node,
        gpus_per_node=setup.gpus_per_node,
        global_batch=setup.global_batch,
        planned_only=True,
    )


def rows(predictions: Iterable[Prediction]) -> Iterator[Row | str]:
    """Each run beside its plan, or why it cannot be; runs of the same work share the plan."""
    plans: dict[tuple[Transformer, bool, Job], float] = {}
    for each in predictions:
        setup = each.setup
        assert setup is not None
        try:
            pins, dropout = pins_of(setup), setup.framework.dropout
            job = job_of(setup)
            pricing = Pricing(graph_of(setup.model, setup.seq_len, dropout), job, load(job.cluster))
            pinned = pricing.for_job(replace(job, pins=pins))
            theirs = plan_priced(pinned, with_alternatives=False).estimate.step_s
            key = setup.model, dropout, job
            if key not in plans:
                plans[key] = plan_priced(pricing, with_alternatives=False).estimate.step_s
            yield Row(id=each.row.id, setup=setup, theirs_s=theirs, ours_s=plans[key])
        except AutoplanError as reason:
            yield f"{each.row.id}: {reason}"


def print_plans(sets: Sequence[str], every: int) -> None:
    """A line for each run; ends with 1 where a plan is slower than a run's configuration."""
    print(f"{'run':24} {'cluster':16} {'GPUs':>5} {'pp x dp x tp':>12} {'theirs s':>9} "
          f"{'ours s':>9} {'ratio':>6}")  # fmt: skip
    slower, left_out = 0, []
    for row in rows(complete(sets)[::every]):
        if isinstance(row, str):
            left_out.append(row)
            continue
        setup = row.setup
        mesh = f"{setup.pp} x {setup.dp} x {setup.tp}"
        print(f"{row.id:24} {setup.cluster:16} {setup.gpus:5} {mesh:>12} {row.theirs_s:9.4g} "
              f"{row.ours_s:9.4g} {row.ratio:6.3f}", flush=True)  # fmt: skip
        slower += row.ratio < 1 - TOLERANCE
    for reason in left_out:
        print(f"not priced: {reason}")
    if slower:
        raise SystemExit(f"{slower} plans are slower than what was run")


def print_sweeps() -> None:
    """Whether the run that is predicted to be the fastest nearly was, by source."""
    for name in ("training.csv", "training_bulk.csv"):
        for source, predictions in by_set(predictions_of(read_rows(DATA / name).rows)).items():
            timed = [each for each in predictions if each.row.scored and each.error is not None]
            lost = [
                regret([each.predicted_s or 0.0 for each in group],
                       [each.row.step_time_s or 0.0 for each in group])
                for group in fixed_work(timed)
            ]  # fmt: skip
            if lost:
                near = sum(each <= NEAR for each in lost) / len(lost)
                print(f"{source:24} {len(lost):4} groups, within {NEAR:.0%} of the fastest in "
                      f"{near:4.0%}, largest loss {max(lost):.1%}", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Plans against published runs")
    parser.add_argument("--set", action="append", default=[], help="this set only (repeatable)")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each Nth run")
    parser.add_argument("--sweeps", action="store_true", help="predictions among swept runs")
    given = parser.parse_args()
    if given.sweeps:
        print_sweeps()
    else:
        print_plans(given.set, given.every)


if __name__ == "__main__":
    main()
