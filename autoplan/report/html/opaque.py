"""The operators that a plan runs without a rule, and what they take."""

from __future__ import annotations

from autoplan.plan import Plan
from autoplan.report import units
from autoplan.report.html.markup import Markup, element, section, table
from autoplan.report.opaque import CURE


def opaque(plan: Plan) -> Markup | None:
    """The section on operators without a rule, if there are any."""
    if not plan.opaque:
        return None
    rows = [
        (
            each.operator,
            str(each.calls),
            units.seconds(each.microbatch_s),
            "split" if each.splits_batch else "in one piece",
            each.first,
        )
        for each in plan.opaque
    ]
    columns = ("operator", "calls", "a microbatch", "batch", "first")
    found = table("Operators without a rule", columns, rows, numbers=(1, 2), wraps=(0, 4))
    return section("Operators without a rule", found, element("p", CURE), id_="opaque")
