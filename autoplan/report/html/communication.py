"""Messages of a step: what is sent, how much of it, and what of it shows."""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.plan import Estimate, Plan
from autoplan.report import units
from autoplan.report.html.markup import Markup, element, section, table

_NOTE = (
    "On the rank that is busy for longest. Bytes are those of the whole tensors that messages are "
    "about. What shows is not hidden by compute; over pp, it is what the rank waits for messages "
    "that come to it."
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
            ("collective", "axis", "messages", "bytes", "time"),
            _messages(estimate),
            numbers=(2, 3, 4),
        )
    ]
    if estimate.exposed_by_axis_s:
        parts.append(
            table(
                "What shows, by axis",
                ("axis", "time", "shows", "hidden", "of the step"),
                _axes(estimate),
                numbers=(1, 2, 3, 4),
            )
        )
    return section("Communication", *parts, element("p", _NOTE, class_="note"), id_="communication")


def _messages(estimate: Estimate) -> Iterator[tuple[str, ...]]:
    for name, seconds in estimate.comm_s.items():
        collective, _, axis = name.rpartition(" ")
        count, nbytes = estimate.comm_counts.get(name), estimate.comm_bytes.get(name)
        yield (
            collective,
            axis,
            "-" if count is None else str(count),
            "-" if nbytes is None else units.nbytes(nbytes),
            units.seconds(seconds),
        )


def _axes(estimate: Estimate) -> Iterator[tuple[str, ...]]:
    for axis, shown_s in estimate.exposed_by_axis_s.items():
        all_s = sum(s for name, s in estimate.comm_s.items() if name.endswith(f" {axis}"))
        if all_s or shown_s:
            hidden = "-" if axis == "pp" else units.seconds(max(0.0, all_s - shown_s))
            share = units.percent(shown_s / estimate.step_s)
            yield axis, units.seconds(all_s), units.seconds(shown_s), hidden, share
