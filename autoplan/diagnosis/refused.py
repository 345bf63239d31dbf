"""Findings of what a model is refused for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoplan.diagnosis.lines import places
from autoplan.findings import Finding
from autoplan.trace.refusals import RefusalError, RefusalKind

_COSTS: Mapping[RefusalKind, str] = {
    "BatchNorm": "its running statistics would not be those of one device",
    "autocast": "its casts would be lost, so that operators run in another precision",
    "buffer mutation": "the buffer would keep its first value",
    "custom autograd": "its backward would be lost: gradients would be those of its forward",
    "data-dependent branch": "the other way would be lost, and ranks that branch apart hang",
    "data-dependent size": "memory and time of a step are not known, and ranks would disagree",
    "data-dependent value": "a number of one batch would be used for all",
    "gradient hook": "it would not run, so that gradients differ",
    "graph break": "the model cannot be traced, so there is no plan",
    "in-place operator": "what reads the same memory would see another value",
    "not traceable": "the model cannot be traced, so there is no plan",
    "parameter mutation": "ranks that see other samples would write other weights",
    "randomness": "ranks would draw apart, or every step run another program",
    "state": "every step would be another program",
}


def findings_of(refusals: Sequence[RefusalError]) -> list[Finding]:
    """One finding for what is refused by the same words, with all its places."""
    grouped: dict[str, list[RefusalError]] = {}
    for refusal in refusals:
        grouped.setdefault(refusal.what, []).append(refusal)
    return [
        Finding(
            kind=same[0].kind,
            effect="stops",
            what=what,
            cost=_COSTS[same[0].kind],
            cure=same[0].cure,
            places=places(refusal.where for refusal in same),
        )
        for what, same in grouped.items()
    ]
