"""The step as trace events, for Perfetto (ui.perfetto.dev) or ``chrome://tracing``.

The format is Chrome's "Trace Event Format" in JSON: complete events (``X``) and counters (``C``),
times in microseconds. A process stands for a rank of the pipeline. Its tracks are compute, where
what messages add is nested at the end of each action, messages over ``dp`` that show, and messages
to the next stage and to the one before; its counter is memory in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autoplan.errors import PlanError
from autoplan.plan import Plan
from autoplan.report import schedules, words
from autoplan.report.held_memory import held_memory
from autoplan.report.step import Delivery, Span, Step, step_of

Event = dict[str, Any]
COMPUTE, OVER_DP, TO_NEXT, TO_PREVIOUS = 1, 2, 3, 4
_TRACKS = {
    COMPUTE: "compute",
    OVER_DP: "messages over dp that show",
    TO_NEXT: "messages to the next stage",
    TO_PREVIOUS: "messages to the stage before",
}
_NAMES = {
    "F": "forward",
    "B": "backward",
    "I": "backward, for inputs",
    "W": "backward, for weights",
    "head": "weights gathered",
    "tail": "gradients summed",
    "optimizer": "optimizer",
}


def trace(plan: Plan) -> dict[str, Any]:
    """The trace of a plan's step.

    Raises:
        PlanError: the plan file is older than the seconds of its stages are.
    """
    step = step_of(plan)
    if step is None:
        raise PlanError(
            "plan file is of an older version, without the seconds of each stage; plan again for "
            "a trace"
        )
    return {
        "traceEvents": [*_events(plan, step)],
        "displayTimeUnit": "ms",
        "otherData": {
            "model": plan.job.model.name,
            "decisions": words.decided(plan),
            "schedule": schedules.name(plan.schedule),
            "what": "simulated by the cost model, not measured",
        },
    }


def _events(plan: Plan, step: Step) -> Iterator[Event]:
    for rank, spans in enumerate(step.spans):
        name = f"pipeline rank {rank}" if plan.stages else "each device"
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}}
        used = {_track(span) for span in spans}
        used |= {_way(sent) for sent in step.deliveries if sent.rank == rank}
        for track in sorted(used):
            yield {
                "ph": "M",
                "name": "thread_name",
                "pid": rank,
                "tid": track,
                "args": {"name": _TRACKS[track]},
            }
        for span in spans:
            yield from _of_span(span)
        yield from _memory(plan, step, rank)
    for sent in step.deliveries:
        name = f"{'activations' if sent.to_next else 'gradients'} of microbatch {sent.microbatch}"
        yield _complete(name, sent.rank, _way(sent), sent.start_s, sent.stop_s, stage=sent.stage)


def _track(span: Span) -> int:
    return OVER_DP if span.kind in ("head", "tail") else COMPUTE


def _way(sent: Delivery) -> int:
    return TO_NEXT if sent.to_next else TO_PREVIOUS


def _of_span(span: Span) -> Iterator[Event]:
    name = _NAMES[span.kind]
    if span.microbatch is None:
        yield _complete(name, span.rank, _track(span), span.start_s, span.stop_s)
        return
    yield _complete(
        f"{name} of microbatch {span.microbatch}",
        span.rank,
        COMPUTE,
        span.start_s,
        span.stop_s,
        stage=span.stage,
        microbatch=span.microbatch,
    )
    if span.messages_s > 0:
        start_s = span.stop_s - span.messages_s
        yield _complete("messages over tp and dp", span.rank, COMPUTE, start_s, span.stop_s)


def _complete(
    name: str, rank: int, track: int, start_s: float, stop_s: float, **details: object
) -> Event:
    start_ns, stop_ns = round(1e9 * start_s), round(1e9 * stop_s)
    return {
        "ph": "X",
        "name": name,
        "pid": rank,
        "tid": track,
        "ts": start_ns / 1000,
        "dur": (stop_ns - start_ns) / 1000,
        "args": details,
    }


def _memory(plan: Plan, step: Step, rank: int) -> Iterator[Event]:
    held = held_memory(plan, step, rank)
    for moment_s, nbytes in held.moments:
        yield {
            "ph": "C",
            "name": "memory",
            "pid": rank,
            "ts": round(1e9 * moment_s) / 1000,
            "args": {"held throughout": held.always_bytes, "activations": nbytes},
        }
