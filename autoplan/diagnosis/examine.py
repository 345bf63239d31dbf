"""All findings of a model: of its trace, then of its graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from autoplan.diagnosis import refused, structure
from autoplan.diagnosis.survey import survey
from autoplan.findings import Effect, Finding, Findings
from autoplan.trace.inputs import read_inputs
from autoplan.zoo import ModelUnderPlan


def examine(
    name: str, case: ModelUnderPlan, batch_dims: Mapping[str, int | None] | None
) -> Findings:
    """Looks a model over.

    Raises:
        UnsupportedModelError: example inputs that are not the model's.
    """
    read_inputs(
        case.model,
        case.example_inputs,
        with_targets=case.loss_fn is not None,
        batch_dims=batch_dims,
    )
    seen = survey(case, batch_dims)
    found = refused.findings_of(seen.refusals)
    if seen.graph is not None:
        found += [one for one in structure.findings_of(seen.graph) if not _is_told(one, found)]
    effects = get_args(Effect)
    return Findings(
        model=name,
        operators=None if seen.refusals or not seen.graph else len([*seen.graph.of_kind("call")]),
        findings=tuple(sorted(found, key=lambda one: effects.index(one.effect))),
    )


def _is_told(finding: Finding, refused: list[Finding]) -> bool:
    """Whether it is about an operator that the model is refused for at the same lines."""
    told = {place for one in refused for place in one.places}
    return finding.kind == "operator without a rule" and told.issuperset(finding.places)
