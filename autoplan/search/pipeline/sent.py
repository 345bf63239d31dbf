"""All messages of one pipeline rank in a step, hidden ones included, by collective and axis.

Seconds are those that the search has priced. ZeRO 0 sums gradients in buckets; otherwise each unit
(``loads.Unit``) has its own messages, and hybrid sharding sums what each reduce-scatter left
between replicas. Messages of weights are named after ``dp``; ranks of ``cp`` take part in them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from autoplan.capabilities import bucket_bytes
from autoplan.search.pipeline.loads import Load, Unit
from autoplan.search.pipeline.solve import Found
from autoplan.search.regions.messages import Sent
from cost_models.memory import COMPUTE_BYTES, STORED_BYTES


def sent_by(found: Found, stages: Sequence[int]) -> dict[str, Sent]:
    """Messages of a rank with these stages: ``all_gather dp``, in alphabetical order."""
    counted = defaultdict[str, Sent](Sent)
    for stage in stages:
        for kind, sent in _over_dp(found, stage):
            counted[f"{kind} dp"] += sent
        for column, key in found.columns(stage):
            for kind, sent in found.family.menus.messages(key, column).items():
                counted[f"{kind} tp"] += sent.times(found.config.num_microbatches)
        for kind, sent in over_cp(found, stage):
            counted[f"{kind} cp"] += sent
        for sent in _to_neighbours(found, stage):
            counted["send_recv pp"] += sent
    return {name: sent for name, sent in sorted(counted.items()) if sent.seconds > 0}


def over_cp(found: Found, stage: int) -> Iterator[tuple[str, Sent]]:
    """Messages of a stage's columns over ``cp`` in a step."""
    if found.config.cp == 1:
        return
    for column, key in found.columns(stage):
        for kind, sent in found.family.menus.exchanges(key, column).items():
            yield kind, sent.times(found.config.num_microbatches)


def _over_dp(found: Found, stage: int) -> Iterator[tuple[str, Sent]]:
    load, clock = found.value.loads[stage], found.costs.clock
    seconds = clock.messages_s(load)
    if not clock.stage.shards_states:
        nbytes = STORED_BYTES * _trained(load)
        buckets = math.ceil(nbytes / bucket_bytes(nbytes))
        yield "all_reduce", Sent(seconds=seconds["all_reduce"], nbytes=nbytes, count=buckets)
        return
    weights = [unit.trained_elements + unit.frozen_elements for unit in load.units]
    gradients = [unit.trained_elements for unit in load.units]
    gathered = _unit_by_unit(load.units, weights, COMPUTE_BYTES[clock.messages.precision])
    reduced = _unit_by_unit(load.units, gradients, STORED_BYTES)
    summed = replace(reduced, nbytes=reduced.nbytes / found.config.shards)
    for kind, once, times in (
        ("all_gather", gathered, clock.gathers),
        ("reduce_scatter", reduced, clock.reductions),
        ("all_reduce", summed, clock.reductions),
    ):
        yield (
            kind,
            Sent(seconds=seconds[kind], nbytes=times * once.nbytes, count=times * once.count),
        )


def _unit_by_unit(units: Sequence[Unit], elements: Sequence[float], element_bytes: int) -> Sent:
    """One message of every unit that has any elements; without its seconds."""
    pairs = [(unit.count, each) for unit, each in zip(units, elements, strict=True) if each]
    return Sent(
        nbytes=element_bytes * sum(count * each for count, each in pairs),
        count=sum(count for count, _ in pairs),
    )


def _trained(load: Load) -> float:
    return sum(unit.count * unit.trained_elements for unit in load.units)


def _to_neighbours(found: Found, number: int) -> Iterator[Sent]:
    """To the next stage and to the one before, for all microbatches of a step."""
    stage, times = found.stages[number], found.value.sent[number]
    cuts = found.costs.cuts
    if number < len(found.stages) - 1:
        nbytes = cuts[stage.stop - 1].forward_bytes
        yield _message(times.send_forward_s, nbytes).times(found.config.num_microbatches)
    if number > 0:
        nbytes = cuts[stage.first - 1].backward_bytes
        yield _message(times.send_backward_s, nbytes).times(found.config.num_microbatches)


def _message(seconds: float, nbytes: float) -> Sent:
    return Sent(seconds=seconds, nbytes=nbytes, count=1 if nbytes else 0)
