"""The HTML report: whole, safe, self-contained, and with no figure that the plan does not give."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from rich.console import Console

from autoplan.plan import Plan
from autoplan.plan_details import FlowOperator, TensorRead
from autoplan.report import units
from autoplan.report.html import page
from autoplan.report.html.markup import element
from autoplan.report.summary import summary
from autoplan.report.text import print_report
from autoplan.report.trace import trace
from tests.unit.sample_pipeline import PIPELINE
from tests.unit.sample_plan import PLAN
from tests.unit.sample_timed import FLOW, TIMED
from tests.unit.test_plan_io import plans

_VOID = {"meta", "br", "rect", "line", "stop", "path", "circle"}
_MOST_BYTES = 300_000


class Page(HTMLParser):
    """Elements with their attributes and the text outside the style, of a page whose tags match."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(page(plan))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _VOID
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


PLANS = {"timed": TIMED, "pipeline": PIPELINE, "plain": PLAN}


@pytest.mark.parametrize("name", PLANS)
def test_pages_are_whole_small_and_load_nothing(name: str) -> None:
    found, text = Page(PLANS[name]), page(PLANS[name])
    assert len(text.encode()) < _MOST_BYTES
    assert not re.search(r"<(script|link|img|iframe|object|embed|base|form|image|use)\b", text)
    assert not re.search(r"(https?:)?//|url\(|@import", text.replace("<!DOCTYPE", ""))
    (policy,) = [m for m in found.named("meta") if m.get("http-equiv")]
    assert str(policy["content"]).startswith("default-src 'none'")


@pytest.mark.parametrize("name", PLANS)
def test_pages_can_be_read_without_seeing_them(name: str) -> None:
    found = Page(PLANS[name])
    assert found.named("html") == [{"lang": "en"}]
    assert len(found.named("h1")) == 1
    assert all(cell.get("scope") in ("col", "row") for cell in found.named("th"))
    assert len(found.named("caption")) == len(found.named("table"))
    drawings = [each for each in found.named("svg") if each.get("role") == "img"]
    assert len(found.named("desc")) == len(drawings) > 0
    labels = {each["aria-labelledby"] for each in found.named("section")}
    assert labels == {each["id"] for each in found.named("h2")}
    regions = [each for each in found.named("div") if each.get("role") == "region"]
    assert all(each.get("tabindex") == "0" and each.get("aria-label") for each in regions)


def test_names_are_text_and_never_markup() -> None:
    found = Page(TIMED)
    text = "".join(found.text)
    for name in ("<script>alert(1)</script>", "<b>tp</b>", "<img src=x>"):
        assert name in text
    tags = {tag for tag, _ in found.elements}
    assert not tags & {"script", "b", "img"}
    assert element("p", '<"&>', class_="a\"b'<") == (
        '<p class="a&quot;b&#x27;&lt;">&lt;&quot;&amp;&gt;</p>'
    )


def test_all_names_are_escaped() -> None:
    name = "</style></title><script>x"
    job = replace(
        TIMED.job,
        model=replace(TIMED.job.model, name=name),
        cluster=name,
        optimizer=name,
        placements=((name, name),),
    )
    estimate = replace(TIMED.estimate, comm_s={f"{name} tp": 0.1})
    stages = tuple(replace(stage, first=name) for stage in TIMED.stages)
    others = tuple(replace(other, name=name, reason=name) for other in TIMED.alternatives)
    plan = replace(TIMED, job=job, estimate=estimate, stages=stages, alternatives=others)
    plan = replace(plan, search=replace(plan.search, space=name), warnings=(name,))
    found = Page(plan)
    assert found.named("script") == []
    assert "".join(found.text).count(name) >= 8


def test_an_old_plan_file_says_why_it_has_no_timeline() -> None:
    assert "does not hold the seconds of each stage" in "".join(Page(PIPELINE).text)
    assert "Timeline of one training step" in Page(TIMED).text


def test_plans_that_the_model_cannot_tell_apart_are_named() -> None:
    text = "".join(Page(TIMED).text)
    assert "Within the model's error of this plan: FSDP (ZeRO-3)." in text
    alone = replace(TIMED, alternatives=TIMED.alternatives[2:])
    assert "No other plan that fits is within the model's error" in "".join(Page(alone).text)
    elsewhere = replace(TIMED, job=replace(TIMED.job, cluster="dgx-v100"))
    assert "the error of the model is not known" in "".join(Page(elsewhere).text)


def test_a_plan_that_does_not_fit_is_drawn_over_its_limit() -> None:
    estimate = replace(TIMED.estimate, memory_limit_bytes=TIMED.estimate.peak_memory_bytes // 2)
    found = Page(replace(TIMED, estimate=estimate))
    assert "Does not fit" in "".join(found.text)
    lines = [each for each in found.named("line") if each.get("class") == "limit"]
    assert {each["x1"] for each in lines} == {"50%"}


def test_a_long_pipeline_stays_small() -> None:
    timing = TIMED.estimate.timings[0]
    estimate = replace(
        TIMED.estimate, timings=(timing,) * 40, stages=TIMED.estimate.stages[:1] * 40
    )
    stage = TIMED.stages[0]
    stages = tuple(replace(stage, rank=number, blocks=()) for number in range(40))
    mesh = replace(TIMED.mesh, pp=40)
    plan = replace(TIMED, mesh=mesh, num_microbatches=200, estimate=estimate, stages=stages)
    text = page(plan)
    assert len(text.encode()) < _MOST_BYTES
    assert "16 of 40 ranks are drawn" in text


def test_many_ways_to_run_blocks_stay_small() -> None:
    """Each with as many operators as a plan file has at most, each in a module of its own."""
    count, each = 8, 160
    region = TIMED.regions[1]
    regions = tuple(replace(region, blocks=(block,), recomputed=()) for block in region.blocks)
    reads = tuple(
        (TensorRead(source=number - 1, forward="all_gather", backward="reduce_scatter", nbytes=9),)
        for number in range(each)
    )
    operators = tuple(
        FlowOperator(name=f"self_attention.part{n}/linear", placement="Shard(1)", reads=read)
        for n, read in enumerate(reads)
    )
    flows = tuple(replace(FLOW, block=region.blocks[n], operators=operators) for n in range(count))
    text = page(replace(TIMED, regions=(TIMED.regions[0], *regions), flows=flows))
    assert len(text.encode()) < _MOST_BYTES
    assert "1 of 8 ways are drawn" in text


def test_blocks_that_are_too_large_to_draw_are_named() -> None:
    region = TIMED.regions[1]
    rest = replace(region, blocks=region.blocks[2:], recomputed=())
    split = (TIMED.regions[0], replace(region, blocks=region.blocks[:2], recomputed=()), rest)
    for flows, named in ((TIMED.flows, "layers 2-"), ((), "layers 0-")):
        text = page(replace(TIMED, regions=split, flows=flows))
        assert f"more than 160 operators: {named}" in text
        assert ("<svg" in text.partition('id="flows"')[2].partition("</section>")[0]) == bool(flows)
    older = replace(TIMED, flows=(), estimate=replace(TIMED.estimate, modules=()))
    assert "more than 160 operators" not in page(older)
    assert "more than 160 operators" not in page(TIMED)


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(plans())
def test_every_plan_file_has_a_page_a_text_and_a_json(plan: Plan) -> None:
    Page(plan)
    print_report(plan, Console(file=io.StringIO(), width=100))
    json.dumps(summary(plan), allow_nan=False)
    if plan.estimate.timings:
        json.dumps(trace(plan), allow_nan=False)


def numbers_in(value: Any) -> Iterator[float]:
    """Of a JSON value, the numbers that are in texts too."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield from numbers_in(key)
            yield from numbers_in(child)
    elif isinstance(value, list):
        for child in value:
            yield from numbers_in(child)
    elif isinstance(value, str):
        yield from (float(found) for found in re.findall(r"\d+(?:\.\d+)?", value))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


_QUANTITY = re.compile(r"(?:< )?[\d.]+ (?:s|ms|us|ns|B|KiB|MiB|GiB|TiB|%)(?![\w])")


@pytest.mark.parametrize("name", PLANS)
def test_every_quantity_is_one_of_the_json(name: str) -> None:
    record = json.loads(json.dumps(summary(PLANS[name])))
    known, quoted = shown_of(record), json.dumps(record, ensure_ascii=False)
    printed = io.StringIO()
    print_report(PLANS[name], Console(file=printed, width=400, highlight=False))
    for text in (" ".join(Page(PLANS[name]).text), printed.getvalue()):
        found = _QUANTITY.findall(text)
        assert len(found) > 30
        assert [each for each in found if each not in known and each not in quoted] == []


def shown_of(record: dict[str, Any]) -> set[str]:
    """What the report may show of the numbers of the JSON: they, and shares and sums of such."""
    estimate = record["estimate"]
    known = set(numbers_in(record))
    for module in estimate["modules"]:
        weights = module["parameters"] + module["gathered_parameters"]
        rest = (module[name] for name in ("gradients", "optimizer_state", "activations"))
        known |= {weights, sum(rest, weights)}
    step_s, limit = estimate["step_s"], estimate["memory_limit_bytes"]
    axis = {step_s * tick / 4 * near for tick in range(5) for near in (1 - 1e-9, 1, 1 + 1e-9)}
    by_axis = {
        axis: sum(s for key, s in estimate["comm_s"].items() if key.endswith(axis))
        for axis in ("dp", "tp", "pp")
    }
    hidden = {s - estimate["exposed_by_axis_s"].get(axis, 0.0) for axis, s in by_axis.items()}
    longest = {
        s * (1 + (record["trust"] or {"median": 0})["median"])
        for s in (step_s, *(other["step_s"] for other in record["alternatives"]))
    }
    shown = {units.seconds(x) for x in (*known, *axis, *by_axis.values(), *hidden, *longest)}
    shown |= {units.nbytes(value) for value in known}
    shares = {a / b for a, b in product(known, (step_s, limit)) if b}
    gap = record["search"]["gap"]
    shown |= {units.percent(abs(x)) for x in (*known, *shares, *(s - 1 for s in shares), 1, gap)}
    return shown
