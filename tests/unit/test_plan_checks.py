"""Plans whose parts contradict each other are refused, by the name of what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autoplan import plan_io
from autoplan.errors import PlanError
from tests.unit.sample_pipeline import LAYERS, PIPELINE
from tests.unit.sample_plan import PLAN
from tests.unit.sample_timed import TIMED

Change = Callable[[dict[str, Any]], None]


def complaint(plan: Any, change: Change) -> str:
    document = json.loads(plan_io.to_json(plan))
    change(document)
    with pytest.raises(PlanError) as caught:
        plan_io.from_json(json.dumps(document))
    return str(caught.value)


def put(path: str, value: Any) -> Change:
    def change(node: Any) -> None:
        *steps, last = path.split(".")
        for step in steps:
            node = node[int(step)] if isinstance(node, list) else node[step]
        node[int(last) if isinstance(node, list) else last] = value

    return change


def test_a_plan_with_a_pipeline_is_kept() -> None:
    assert plan_io.from_json(plan_io.to_json(PIPELINE)) == PIPELINE


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("schedule", "none", "schedule: 'none' does not go with 4 ranks of pp"),
        ("schedule", "gpipe", "schedule: gpipe with 8 stages on 4 ranks and 32 microbatches"),
        ("schedule", "fifo", "schedule: no schedule 'fifo'; use one of gpipe, 1f1b"),
        ("schedule", "zbv", "stages.4.rank: zbv runs this stage on rank 3, not 0"),
        ("stages", [], "stages: none for 4 ranks of pp"),
        ("stages.5.rank", 0, "stages.5.rank: interleaved_1f1b runs this stage on rank 1, not 0"),
        ("stages.3.first", LAYERS[13], "stages.3.first: 'model.layers.13' is not its first block"),
        ("stages.3.blocks", ["x"], "stages.3.first: 'model.layers.12' is not its first block"),
        ("stages.0.blocks", ["x"], "stages.0.blocks: 'x' is in no region"),
        ("stages.7.blocks", list(LAYERS[28:31]), "stages: 'model.layers.31' is in no stage"),
        ("stages.0.blocks", list(LAYERS[:5]), "stages.1.blocks: 'model.layers.4' is out of order"),
        ("stages.0.blocks.1", LAYERS[0], "stages.0.blocks: 'model.layers.0' is out of order"),
        ("stages.0.blocks.0", LAYERS[1], "stages.0.blocks: 'model.layers.1' is out of order"),
        ("regions.1.blocks.0", LAYERS[8], "regions.1.blocks: 'model.layers.8' is in two places"),
        ("regions.1.blocks.1", LAYERS[0], "regions.1.blocks: 'model.layers.0' is in two places"),
        ("regions.2.recomputed", ["y"], "regions.2.recomputed: 'y' is none of its blocks"),
        ("regions.1.reconverted_inputs", [0, 1], "regions.1.reconverted_inputs: 1 is none of its"),
        ("regions.1.reconverted_inputs", [-1], "regions.1.reconverted_inputs: -1 is none of its"),
        ("replicas", 0, "replicas: 0 is less than one"),
        ("replicas", 3, "replicas: 3 does not divide the 2 ranks of dp"),
        ("estimate.stages", [], "estimate.stages: 0 for 4 ranks of pp"),
        ("mesh.outermost", "tp", "mesh.outermost: "),
        ("mesh.pp", 8, "mesh: its 32 ranks are not the job's 16"),
    ],
)  # fmt: skip
def test_contradictions_are_named(path: str, value: Any, named: str) -> None:
    found = complaint(PIPELINE, put(path, value))
    assert found.startswith(f"plan file: {named}")
    assert found.isprintable()


def test_stages_are_a_multiple_of_the_ranks() -> None:
    def drop(document: dict[str, Any]) -> None:
        last = document["stages"].pop()
        document["stages"][-1]["blocks"] += last["blocks"]

    assert "use a multiple of the ranks as stages" in complaint(PIPELINE, drop)


def test_without_a_pipeline_there_is_no_schedule_and_no_stage() -> None:
    named = "schedule: '1f1b' does not go with 1 ranks of pp"
    assert complaint(PLAN, put("schedule", "1f1b")) == f"plan file: {named}"
    stage = {"rank": 0, "first": "a", "blocks": []}
    assert "stages: 1 stages without a pipeline" in complaint(PLAN, put("stages", [stage]))


def test_a_wrong_plan_is_not_written() -> None:
    with pytest.raises(PlanError, match=r"estimate\.stages: 0 for 1 ranks"):
        plan_io.to_json(replace(PLAN, estimate=replace(PLAN.estimate, stages=())))


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("outlook.scaling.1.devices", 0, "0 is less than one"),
        ("outlook.scaling.0.nodes", -1, "-1 is less than none"),
        ("outlook.scaling.1.nodes", 1, "1 come after 1"),
        ("outlook.scaling.0.samples_per_s", 5e-324, "5e-324 in steps of"),
        ("outlook.scaling.0.samples_per_s", -98.16, "-98.16 per s is less than none"),
        ("outlook.scaling.2.samples_per_s", 1.0, "only one of it and step_s"),
        ("outlook.scaling.0.step_s", -0.1, "-0.1 s is less than none"),
        ("outlook.scaling.0.step_s", 0.0, "0.0 s is less than any step takes"),
        ("outlook.scaling.2.reason", "\x1b[2J", "'\\x1b[2J' has control characters"),
        ("outlook.largest_microbatch.value", 0, "0 is less than one"),
        ("estimate.timings.0.tail_s", 1e308, "1e+308 s is more than any training has"),
        ("estimate.timings.0.times.forward_s", 1e308, "1e+308 s is more"),
        ("estimate.timings.1.optimizer_s", -1.0, "-1.0 s is less than none"),
        ("estimate.head_s", 1e308, "1e+308 s is more"),
        ("estimate.exposed_by_axis_s.dp", 1e308, "1e+308 s is more"),
        ("estimate.samples_per_s", 1e308, "1e+308 per s is more"),
        ("estimate.mfu", 1e308, "1e+308 is more"),
        ("estimate.modules.0.kind", "\x1b[31mRED", "'\\x1b[31mRED' has control characters"),
        ("estimate.modules.1.activations", -1, "-1 is less than none"),
        ("estimate.comm_s", {"\x9b2J": 0.1}, "'\\x9b2J' has control characters"),
        ("alternatives.0.step_s", 1e308, "1e+308 s is more"),
        ("flows.0.operators.0.name", "a\rb", "'a\\rb' has control characters"),
        ("flows.0.operators.1.reads.0.nbytes", -1, "-1 is less than none"),
        ("job.cluster", "\x07", "'\\x07' has control characters"),
    ],
)  # fmt: skip
def test_values_that_no_plan_has_are_named(path: str, value: Any, named: str) -> None:
    found = complaint(TIMED, put(path, value))
    assert found.startswith(f"plan file: {path}: {named}")
    assert found.isprintable()
