"""The page: its sections in order, and its style."""

from __future__ import annotations

from importlib.resources import files

from autoplan.plan import Plan
from autoplan.report.assumptions import assumption_rows, installed_profile
from autoplan.report.html.alternatives import alternatives
from autoplan.report.html.communication import communication
from autoplan.report.html.flow import flows
from autoplan.report.html.markup import Markup, element, join, section
from autoplan.report.html.memory import memory
from autoplan.report.html.opaque import opaque
from autoplan.report.html.outlook import outlook
from autoplan.report.html.placements import decisions, definitions, placements
from autoplan.report.html.timeline import timeline
from autoplan.report.html.trust import trust
from autoplan.report.html.verdict import verdict
from autoplan.report.step import step_of
from autoplan.report.trust import step_error
from hardware_profiles.spec import ClusterSpec

_ASKS_FOR_NOTHING = "default-src 'none'; style-src 'unsafe-inline'"


def page(plan: Plan) -> str:
    """The whole report of a plan as one HTML document that loads nothing."""
    cluster = installed_profile(plan)
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_ASKS_FOR_NOTHING),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{plan.job.model.name}: autoplan report"),
        element("style", Markup(_style())),
    )
    body = element("body", element("main", *_sections(plan, cluster)))
    return join(Markup("<!DOCTYPE html>\n"), element("html", head, body, lang="en"), "\n")


def _style() -> str:
    return files("autoplan.report.html").joinpath("style.css").read_text(encoding="utf-8")


def _sections(plan: Plan, cluster: ClusterSpec | None) -> list[Markup | None]:
    step = step_of(plan)
    return [
        verdict(plan, cluster),
        section("Assumptions", definitions(assumption_rows(plan, cluster)), id_="assumptions"),
        decisions(plan),
        timeline(plan, step),
        memory(plan, step),
        alternatives(plan, step_error(cluster)),
        placements(plan),
        flows(plan),
        opaque(plan),
        communication(plan),
        outlook(plan),
        trust(plan, cluster),
    ]
