"""Traces a model, past what it would be refused for.

A model that can be traced is traced once, as planning does. Otherwise it is traced again with
everything noted that can be passed over (``answers``, and whatever is told to a ``Refuse``): the
graph is then not that of the model, but it shows what else there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import torch

from autoplan.diagnosis.answers import Answers
from autoplan.errors import UnsupportedModelError
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from autoplan.trace.refusals import RefusalError
from autoplan.zoo import ModelUnderPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """The graph, as far as there is one, and what the model would be refused for, in order."""

    graph: OpGraph | None
    refusals: tuple[RefusalError, ...]


def survey(case: ModelUnderPlan, batch_dims: Mapping[str, int | None] | None) -> Survey:
    """Looks at a model in the precision that is planned for by default."""
    noted: list[RefusalError] = []
    graph: OpGraph | None = None

    def trace(**options) -> OpGraph:
        return capture(
            case.model,
            case.example_inputs,
            loss_fn=case.loss_fn,
            batch_dims=batch_dims,
            dtype=torch.bfloat16,
            **options,
        )

    try:
        return Survey(graph=trace(), refusals=())
    except UnsupportedModelError as error:
        first = _parts(error)
    with suppress(Exception), Answers(noted.append):
        try:
            graph = trace(refuse=noted.append)
        except UnsupportedModelError as error:
            noted.append(_parts(error))
    if not first.where or all(other.where != first.where for other in noted):
        noted.insert(0, first)
    return Survey(graph=graph, refusals=tuple(_distinct(noted)))


def _parts(error: UnsupportedModelError) -> RefusalError:
    if isinstance(error, RefusalError):
        return error
    what, _, cure = str(error).partition("; ")
    return RefusalError(what, "", cure)


def _distinct(noted: list[RefusalError]) -> list[RefusalError]:
    return list({(refusal.what, refusal.where): refusal for refusal in noted}.values())
