"""How good the plan is, and how sure its figures are."""

from __future__ import annotations

from autoplan.plan import Plan
from autoplan.report.html.markup import Markup, element, section
from autoplan.report.trust import error_sentence, gap_sentence
from hardware_profiles.spec import ClusterSpec


def trust(plan: Plan, cluster: ClusterSpec | None) -> Markup:
    """The section on proof and error."""
    space = element(
        "details",
        element("summary", f"The space: {plan.search.candidates} candidates"),
        element("p", f"{plan.search.space}."),
    )
    return section(
        "How good it is",
        element("p", gap_sentence(plan)),
        element("p", f"{error_sentence(cluster)} Nothing of this plan was run."),
        space,
        id_="trust",
    )
