"""The plans that are measured: a model, a number of ranks and what is pinned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import autoplan
from autoplan.plan import Plan
from benchmarks.predicted.models import SUBJECTS

MICROBATCHES, OF_A_PIPELINE = 2, 4
"""Of each data-parallel rank: with one, gradients begin to be while activations go, of which the
estimate counts both in full."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A model under one way to train it, on so many ranks; what is not pinned is chosen."""

    model: str
    ranks: int
    way: str
    pins: Mapping[str, int | str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.model}, {self.ranks} x {self.way}"


def _pins(pp: int = 1, dp: int = 1, tp: int = 1, **others: int | str) -> dict[str, int | str]:
    return {"pp": pp, "dp": dp, "tp": tp, "zero": 0, "recompute": "none", **others}


_ALONE = _pins()
_AGAIN = _pins(recompute="full")
_ONE_1F1B = _pins(pp=2, schedule="1f1b")

PAIRS = (
    Pair(model="GPT", ranks=1, way="alone", pins=_ALONE),
    Pair(model="GPT", ranks=1, way="recompute", pins=_AGAIN),
    Pair(model="MLP", ranks=1, way="alone", pins=_ALONE),
    Pair(model="ViT", ranks=1, way="alone", pins=_ALONE),
    Pair(model="BERT", ranks=1, way="alone", pins=_ALONE),
    Pair(model="T5", ranks=1, way="recompute", pins=_AGAIN),
    Pair(model="GPT", ranks=2, way="dp 2", pins=_pins(dp=2)),
    Pair(model="GPT", ranks=2, way="dp 2, ZeRO 3", pins=_pins(dp=2, zero=3)),
    Pair(model="GPT", ranks=2, way="tp 2", pins=_pins(tp=2)),
    Pair(model="GPT", ranks=2, way="pp 2, 1F1B", pins=_ONE_1F1B),
    Pair(model="MLP", ranks=2, way="dp 2", pins=_pins(dp=2)),
    Pair(model="ViT", ranks=2, way="dp 2, recompute", pins=_pins(dp=2, recompute="full")),
    Pair(model="BERT", ranks=2, way="tp 2", pins=_pins(tp=2)),
    Pair(model="T5", ranks=2, way="pp 2, 1F1B", pins=_ONE_1F1B),
    Pair(model="GPT", ranks=4, way="dp 4, ZeRO 3", pins=_pins(dp=4, zero=3)),
    Pair(model="GPT", ranks=4, way="dp 2 x tp 2", pins=_pins(dp=2, tp=2)),
    Pair(model="ViT", ranks=4, way="dp 4", pins=_pins(dp=4)),
    Pair(model="BERT", ranks=4, way="pp 2 x dp 2, 1F1B", pins=_ONE_1F1B | {"dp": 2}),
    Pair(model="T5", ranks=4, way="tp 4", pins=_pins(tp=4)),
)


def plan_of(pair: Pair, cluster: str) -> Plan:
    """The plan under the pair's pins, in float32."""
    subject = SUBJECTS[pair.model]
    in_pipeline = int(pair.pins["pp"]) > 1
    each = (
        subject.samples // int(pair.pins["dp"]) // (OF_A_PIPELINE if in_pipeline else MICROBATCHES)
    )
    return autoplan.plan(
        subject.build(),
        subject.batch(),
        cluster=cluster,
        gpus_per_node=pair.ranks,
        global_batch=subject.samples,
        precision="fp32",
        pins={**pair.pins, "microbatch": max(1, each)},
    )
