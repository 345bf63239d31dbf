"""Messages of a step: what is sent, how much of it, and what of it shows."""

from __future__ import annotations

from autoplan.plan import Plan
from autoplan.report.html.markup import Markup, element, section, table
from autoplan.report.messages import (
    AXIS_COLUMNS,
    MESSAGE_COLUMNS,
    NOTE,
    axis_rows,
    message_rows,
)


def communication(plan: Plan) -> Markup:
    """The section on communication."""
    estimate = plan.estimate
    if not any(estimate.comm_s.values()):
        text = element("p", "One step of this plan sends nothing.")
        return section("Communication", text, id_="communication")
    parts = [
        table(
            "Messages of one step, hidden ones included",
            MESSAGE_COLUMNS,
            message_rows(estimate),
            numbers=(2, 3, 4),
        )
    ]
    if estimate.exposed_by_axis_s:
        parts.append(
            table(
                "What shows, by axis",
                AXIS_COLUMNS,
                axis_rows(estimate),
                numbers=(1, 2, 3, 4),
            )
        )
    return section("Communication", *parts, element("p", NOTE, class_="note"), id_="communication")
