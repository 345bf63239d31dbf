"""The answer first: what was decided, whether it fits, how long a step takes."""

from __future__ import annotations

from autoplan.plan import Plan
from autoplan.report import units, words
from autoplan.report.html.markup import Markup, element
from hardware_profiles.spec import ClusterSpec


def verdict(plan: Plan, cluster: ClusterSpec | None) -> Markup:
    """The head of the page, with all warnings."""
    lines = [words.verdict(plan)]
    if plan.job.memory_limit_bytes is not None:
        lines.append(words.memory_limit(plan.job.memory_limit_bytes, plan.job.memory_margin))
    fits = plan.estimate.peak_memory_bytes <= plan.estimate.memory_limit_bytes
    return element(
        "header",
        element("h1", words.title(plan, cluster)),
        element("p", words.decided(plan), class_="decisions"),
        element("p", " ".join(lines), class_="fits" if fits else "over"),
        _warnings(plan),
        _facts(plan),
    )


def _warnings(plan: Plan) -> Markup | None:
    binds = words.memory_binds(plan)
    found = [*([binds] if binds else []), *(f"Warning: {text}" for text in plan.warnings)]
    if not found:
        return None
    return element("ul", *(element("li", text) for text in found), class_="warnings")


def _facts(plan: Plan) -> Markup:
    estimate = plan.estimate
    facts = [("one step", units.seconds(estimate.step_s))]
    if estimate.tokens_per_s is not None:
        facts.append(("tokens a second", units.count(estimate.tokens_per_s)))
    facts += [
        ("samples a second", units.count(estimate.samples_per_s)),
        ("of peak flops (MFU)", units.percent(estimate.mfu)),
        ("memory of the fullest device", units.nbytes(estimate.peak_memory_bytes)),
        ("gap to the proven bound", units.percent(plan.search.gap)),
    ]
    pairs = [element("div", element("dt", name), element("dd", value)) for name, value in facts]
    return element("dl", *pairs, class_="facts")
