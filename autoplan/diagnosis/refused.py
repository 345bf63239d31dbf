"""Findings of what a model is refused for."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.diagnosis.lines import places
from autoplan.findings import Finding
from autoplan.trace.refusals import RefusalError

_KINDS = {
    "branches on the value": "data-dependent branch",
    "takes the value of a tensor": "data-dependent value",
    "depends on the data": "data-dependent size",
    "torch.autograd.Function": "custom autograd",
    "hook on": "gradient hook",
    "to the buffer": "buffer mutation",
    "updates running statistics": "buffer mutation",
    "in-place operator": "in-place operator",
    "random module": "randomness",
    "at every call": "state",
    "tracing failed": "graph break",
}
_COSTS = {
    "data-dependent branch": "the other way would be lost, and ranks that branch apart hang",
    "data-dependent value": "a number of one batch would be used for all",
    "data-dependent size": "memory and time of a step are not known, and ranks would disagree",
    "custom autograd": "its backward would be lost: gradients would be those of its forward",
    "gradient hook": "it would not run, so that gradients differ",
    "buffer mutation": "the buffer would keep its first value",
    "in-place operator": "what reads the same memory would see another value",
    "randomness": "every rank and every step would run another program",
    "state": "every step would be another program",
}


def findings_of(refusals: Sequence[RefusalError]) -> list[Finding]:
    """One finding for what is refused by the same words, with all its places."""
    grouped: dict[str, list[RefusalError]] = {}
    for refusal in refusals:
        grouped.setdefault(refusal.what, []).append(refusal)
    return [
        Finding(
            kind=_kind(what),
            effect="stops",
            what=what,
            cost=_COSTS.get(_kind(what), "the model cannot be traced, so there is no plan"),
            cure=same[0].cure,
            places=places(refusal.where for refusal in same),
        )
        for what, same in grouped.items()
    ]


def _kind(what: str) -> str:
    return next((kind for words, kind in _KINDS.items() if words in what), "not traceable")
