"""Plan files: the same bytes for the same plan, strict reading, atomic writing."""

import json
import math
import os
import stat
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan import plan_io
from autoplan.errors import PlanError
from autoplan.job import Job, ModelSource
from autoplan.plan import (
    Estimate,
    MeshPlan,
    Plan,
    RegionPlan,
    SearchRecord,
    StageEstimate,
    StageTiming,
)
from cost_models.memory import MemoryBreakdown
from cost_models.schedule_times import StageTimes
from tests.unit import sample_plan
from tests.unit.old_plans import as_version, members_after
from tests.unit.random_plans import plans

ROOT = RegionPlan(
    kind="", blocks=(), recomputed=(), parameters={"b": "Replicate()", "a": "Shard(0)"},
    operators={"mul": "replicate"}, inputs=(),
)  # fmt: skip
PLAN = Plan(
    job=Job(
        model=ModelSource(kind="zoo", name="gpt2", inputs=(("ids", (2, 8)),)),
        cluster="cpu-gloo", nodes=1, gpus_per_node=4, global_batch=16,
    ),
    fingerprint="f00d",
    mesh=MeshPlan(dp=2, tp=2),
    zero=1, microbatch=4, num_microbatches=2, schedule="none",
    regions=(ROOT,),
    estimate=Estimate(
        step_s=0.5, compute_s=0.3, exposed_comm_s=0.1, bubble_s=0.0, optimizer_s=0.1,
        comm_s={"all_reduce tp": 0.1}, tokens_per_s=None, samples_per_s=32.0, mfu=0.4,
        peak_memory_bytes=9, memory_limit_bytes=10,
        stages=(
            StageEstimate(
                devices=4,
                compute_s=0.3,
                memory=MemoryBreakdown(**dict.fromkeys(MemoryBreakdown.__slots__, 1)),
            ),
        ),
    ),
    search=SearchRecord(gap=0.01, lower_bound_s=0.49, candidates=7, space="dp x tp"),
    alternatives=(), profile_digest="beef",
)  # fmt: skip
TEXT = plan_io.to_json(PLAN)
SECONDS = dict.fromkeys(StageTimes.__slots__, 0.1)
TIMING = dict.fromkeys(StageTiming.__slots__, 0.0) | {"times": SECONDS, "kept_bytes": 1}


def changed(path: str, value) -> str:
    document = json.loads(TEXT)
    *steps, last = path.split(".")
    node = document
    for step in steps:
        node = node[int(step)] if isinstance(node, list) else node[step]
    node[last] = value
    return json.dumps(document)


@settings(deadline=None, max_examples=60)
@given(plans())
def test_round_trip(plan):
    written = plan_io.to_json(plan)
    assert plan_io.from_json(written) == plan
    assert plan_io.to_json(plan_io.from_json(written)) == written


def test_equal_plans_give_equal_bytes():
    reordered = replace(ROOT, parameters=MappingProxyType({"a": "Shard(0)", "b": "Replicate()"}))
    same = replace(PLAN, regions=(reordered,), estimate=replace(PLAN.estimate, samples_per_s=32))
    assert same == replace(PLAN, regions=(reordered,))
    assert plan_io.to_json(same) == TEXT


def test_text_is_readable():
    assert TEXT.endswith("}\n")
    assert TEXT.startswith('{\n  "job": {\n    "model": {')
    assert '"a": "Shard(0)",\n        "b": "Replicate()"' in TEXT


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("zz", 1, "zz: unknown field"),
        ("job.model.zz", 1, "job.model.zz: unknown field"),
        ("estimate.stages.0.compute_s", "1", r"estimate.stages.0.compute_s: .*number"),
        ("estimate.stages.0.memory.gradients", 1.5, r"stages.0.memory.gradients: .*integer"),
        ("regions.0.parameters.a", 3, r"regions.0.parameters.a: .*string"),
        ("regions.0.blocks", "abc", r"regions.0.blocks: .*array"),
        ("job.precision", "fp8", "job.precision: "),
        ("mesh.dp", True, "mesh.dp: "),
        ("mesh.dp", None, "mesh.dp: "),
        ("mesh.dp", 0, "mesh.dp: 0 is less than one"),
        ("mesh.dp", 4, "mesh: its 8 ranks are not the job's 4"),
        ("job.nodes", -1, "job.nodes: -1 is less"),
        ("job.global_batch", 8, "not the global batch of 8"),
        ("zero", 4, "zero: 4 is not a stage"),
        ("zero", 2**63, "does not fit 64 bits"),
        ("version", 7, "version 7 is not 6"),
        ("version", "1", "version '1' is not 6"),
        ("version", True, "version True is not 6"),
        ("version", 1, "job.memory_limit_bytes: unknown field in a file of version 1"),
        ("version", 2, "job.planned_only: unknown field in a file of version 2"),
        ("version", 3, "regions.0.reconverted_inputs: unknown field in a file of version 3"),
        ("version", 4, "estimate.comm_bytes: unknown field in a file of version 4"),
        ("version", 5, "estimate.modules: unknown field in a file of version 5"),
        ("flows", [{"block": "b", "operators": [], "outputs": []}], "'b' is in no region"),
        ("outlook", {"longest": 1}, "outlook.longest: unknown field"),
        ("job.memory_margin", 1, "job.memory_margin: "),
        ("job.memory_limit_bytes", 0, "job.memory_limit_bytes: 0 is none"),
        ("job.memory_limit_bytes", True, "job.memory_limit_bytes: .*integer"),
        ("job.placements", [["a"]], "job.placements.0"),
        ("job.pins.recompute", True, "job.pins.recompute"),
        ("job.model", None, "job.model: "),
        ("estimate", [], "estimate: "),
        ("estimate.step_s", 0.4, "estimate.step_s: 0.4 s is not the 0.5 s of its parts"),
        ("estimate.step_s", 0.0, "estimate.step_s: 0.0 s is not"),
        ("estimate.bubble_s", -0.1, "estimate.bubble_s: -0.1 s is less than none"),
        ("estimate.memory_limit_bytes", 0, "estimate.memory_limit_bytes: 0 is none"),
        ("estimate.timings", [TIMING] * 2, "estimate.timings: 2 for 1 stages"),
        ("estimate.timings", [TIMING | {"kept_bytes": 0.5}], "timings.0.kept_bytes: .*integer"),
        (
            "estimate.timings",
            [TIMING | {"times": SECONDS | {"forward_s": -1.0}}],
            "estimate.timings: stage 0 takes",
        ),
    ],
)
def test_wrong_fields_are_named(path, value, complaint):
    with pytest.raises(PlanError, match=complaint) as caught:
        plan_io.from_json(changed(path, value))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_files_of_older_versions_load_and_are_written_anew(version):
    found = plan_io.from_json(as_version(sample_plan.PLAN, version))
    assert found == sample_plan.PLAN
    assert plan_io.to_json(found) == plan_io.to_json(sample_plan.PLAN)


@pytest.mark.parametrize(
    ("version", "member"),
    [
        (version, member)
        for version in (1, 2, 3, 4, 5)
        for member in members_after(sample_plan.PLAN, version)
    ],
)
def test_members_are_unknown_in_files_older_than_they_are(version, member):
    complaint = f"plan file: {member}: unknown field in a file of version {version}"
    with pytest.raises(PlanError, match=complaint):
        plan_io.from_json(as_version(sample_plan.PLAN, version, keeping=member))


@pytest.mark.parametrize("member", ["job", "regions", "alternatives", "estimate"])
def test_old_files_with_parts_of_another_shape_are_refused(member):
    document = json.loads(as_version(sample_plan.PLAN, 1))
    document[member] = 5
    with pytest.raises(PlanError, match=f"{member}: "):
        plan_io.from_json(json.dumps(document))


def test_missing_field_is_named():
    document = json.loads(TEXT)
    del document["estimate"]["mfu"]
    with pytest.raises(PlanError, match=r"estimate\.mfu: "):
        plan_io.from_json(json.dumps(document))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "not JSON"),
        ("null", "an object is expected"),
        (TEXT + "x", "not JSON"),
        (TEXT[:-3], "not JSON"),
        (TEXT.replace("0.3", "NaN"), "NaN is not a number"),
        (TEXT.replace("0.3", "-Infinity"), "Infinity is not a number"),
        (TEXT.replace("0.3", "1e999"), "finite"),
        (TEXT.replace("0.3", "1" * 400), "64 bits"),
        (TEXT.replace("0.3", "1" * 5000), "not JSON"),
        (TEXT.replace('"f00d"', '"\\ud800"'), "Invalid JSON"),
        ('{"version": 1, "version": 1}', "'version' stands twice"),
        ('{"version": 1, "a": ' + "[" * 40 + "]" * 40 + "}", "deeper than 32"),
        ("[" * 100_000, "deeper than 32"),
        (" " * (16 * 2**20 + 1), "larger than"),
    ],
)
def test_other_texts_are_refused(content, complaint):
    with pytest.raises(PlanError, match=complaint):
        plan_io.from_json(content)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def places(node, path=()):
    yield path
    if isinstance(node, dict | list):
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield from places(child, (*path, key))


def complaint_about(content: str) -> str:
    """The refusal of a text; empty when it is read, and then it must survive another trip."""
    try:
        plan = plan_io.from_json(content)
    except PlanError as error:
        return str(error)
    assert plan_io.from_json(plan_io.to_json(plan)) == plan
    return ""


PLACES = [place for place in places(json.loads(TEXT)) if place]


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(PLACES), anything)
def test_a_changed_document_is_read_or_refused(place, value):
    document = json.loads(TEXT)
    node = document
    for step in place[:-1]:
        node = node[step]
    node[place[-1]] = value
    assert complaint_about(json.dumps(document)).isprintable()


@settings(deadline=None, max_examples=200)
@given(st.integers(0, len(TEXT) - 1), st.text(max_size=5), st.integers(0, 40))
def test_a_changed_text_is_read_or_refused(start, inserted, cut):
    assert complaint_about(TEXT[:start] + inserted + TEXT[start + cut :]).isprintable()


@pytest.mark.parametrize("mfu", [math.nan, math.inf, "0.4", object(), 2**2000])
def test_plans_that_could_not_be_read_are_not_written(mfu, tmp_path):
    wrong = replace(PLAN, estimate=replace(PLAN.estimate, mfu=mfu))
    with pytest.raises(PlanError):
        plan_io.save(wrong, tmp_path / "plan.json")
    assert not list(tmp_path.iterdir())


def test_save_and_load(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text("old")
    plan_io.save(PLAN, path)
    assert path.read_text() == TEXT
    assert plan_io.load(str(path)) == PLAN
    assert list(tmp_path.iterdir()) == [path]
    plain = tmp_path / "plain"
    plain.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_an_interrupted_save_leaves_the_old_file_alone(tmp_path, monkeypatch, step):
    path = tmp_path / "plan.json"
    path.write_text("old")

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, full_disk)
    with pytest.raises(PlanError, match=r"cannot write plan file .*No space left"):
        plan_io.save(PLAN, path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]
    assert path.read_text() == "old"


def test_unreadable_files_are_refused(tmp_path):
    with pytest.raises(PlanError, match=r"cannot read plan file .*No such file"):
        plan_io.load(tmp_path / "none.json")
    with pytest.raises(PlanError, match="cannot read plan file"):
        plan_io.load(tmp_path)
    with pytest.raises(PlanError, match="cannot read plan file"):
        plan_io.load("a\0b")
    (tmp_path / "latin").write_bytes(b'{"\xff": 1}')
    with pytest.raises(PlanError, match=r"cannot read plan file .*utf-8"):
        plan_io.load(tmp_path / "latin")
    with pytest.raises(PlanError, match="cannot write plan file"):
        plan_io.save(PLAN, tmp_path / "no" / "plan.json")
    with pytest.raises(PlanError, match="cannot write plan file"):
        plan_io.save(PLAN, tmp_path)
