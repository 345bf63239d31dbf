"""What ranks run and hold: stages, and how parameters are placed, repeated layers folded."""

from __future__ import annotations

from autoplan.plan import Plan
from autoplan.report.assumptions import decision_rows
from autoplan.report.fold import parameter_rows
from autoplan.report.html.markup import Markup, element, section, table
from autoplan.report.ranks import rank_groups, rank_rows

_MOST_OPEN = 40
_WHOLE = "Replicate()"


def decisions(plan: Plan) -> Markup:
    """The section on what was decided for the whole step."""
    parts = [definitions(decision_rows(plan))]
    if plan.stages:
        groups = rank_groups(plan)
        note = f"{plan.estimate.stages[0].devices} devices a rank; forward and backward of one"
        parts += [
            table(
                "Ranks of the pipeline",
                ("rank", "stages", "runs", "compute", "forward", "backward", "bubble", "held"),
                rank_rows(plan, groups),
                numbers=(3, 4, 5, 6, 7),
                wraps=(2,),
            ),
            element(
                "p",
                f"{note} microbatch; held: the most microbatches whose activations it keeps.",
                class_="note",
            ),
        ]
    return section("What was decided", *parts, id_="decisions")


def placements(plan: Plan) -> Markup:
    """The section on how parameters are stored over ``tp``."""
    rows = list(parameter_rows(plan.regions))
    split = [name for name, placement in rows if placement != _WHOLE]
    if not split:
        text = f"tp {plan.mesh.tp}: every parameter is whole on each tensor-parallel rank"
        found = element("p", text)
    else:
        share = f"1/{plan.mesh.tp}"
        cells = [(name, at, "all" if at == _WHOLE else share) for name, at in rows]
        columns = ("parameter", "placement", "a rank holds")
        found = table("Parameters, repeated layers folded", columns, cells, wraps=(0,))
        if len(rows) > _MOST_OPEN:
            summary = f"{len(rows)} parameters, {len(split)} of them split"
            found = element("details", element("summary", summary), found)
    return section("Placement of parameters on tp", found, id_="placements")


def definitions(pairs: list[tuple[str, str]]) -> Markup:
    """Names and what they are; lines of a value stay lines."""
    rows = [element("div", element("dt", name), element("dd", value)) for name, value in pairs]
    return element("dl", *rows, class_="pairs")
