"""A request is refused by name before any model is loaded."""

from __future__ import annotations

from typing import Any

import pytest

from autoplan import request
from autoplan.errors import PlanError, ProfileError
from autoplan.job import Job, ModelSource, Pins
from autoplan.launch import matches

SOURCE = ModelSource(kind="zoo", name="gpt2")
GIB = 2**30


def job(**changes: Any) -> Job:
    options = {"nodes": 1, "gpus_per_node": None, "global_batch": 64, "precision": "bf16",
               "optimizer": "adamw", "pins": Pins()} | changes  # fmt: skip
    return request.make_job(SOURCE, cluster="dgx-h100", **options)


def test_a_job_takes_all_devices_of_a_node() -> None:
    assert job(nodes=2).world_size == 16
    assert job(nodes=2, gpus_per_node=4).world_size == 8


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"nodes": 0}, "0 nodes: dgx-h100 has 1 to"),
        ({"nodes": 10**9}, "1000000000 nodes"),
        ({"gpus_per_node": 9}, "9 gpus per node: dgx-h100 has 1 to 8"),
        ({"global_batch": 0}, "global batch 0"),
        ({"global_batch": 10**20}, "give at most 100000000 samples a step"),
        ({"precision": "bf61"}, "did you mean 'bf16'"),
        ({"optimizer": "adam2"}, "choose from .*adamw"),
        ({"memory_limit": "100GiB"}, "memory limit 100GiB: H100-SXM5-80GB has"),
        ({"memory_margin": "100%"}, "memory margin 100%: give a fraction"),
        ({"placements": {"*": "Partial(sum)"}}, r"expected Replicate\(\) or Shard\(dim\)"),
    ],
)
def test_a_job_that_cannot_be(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(PlanError, match=named):
        job(**changes)


def test_pins_that_ask_for_what_is_are_no_extra() -> None:
    plain = Pins(pp=1, schedule="none", stages_per_rank=1, replicas=1, outermost="pp")
    assert job(pins=plain).pins == plain


@pytest.mark.parametrize(
    ("pins", "named"),
    [
        ({"cp": 3}, "cp=3 does not divide the 8 GPUs; cp can be 1, 2, 4, 8"),
        ({"ep": 2}, "ep=2: expert parallelism is not available yet"),
        ({"pp": 3}, "pp=3 does not divide the 8 GPUs; pp can be 1, 2, 4, 8"),
        ({"pp": 2, "dp": 2, "tp": 4}, "pp=2 times dp=2 times tp=4 is 16, not the 8 GPUs; "
                                      "use pp=1 or dp=1 or tp=2"),
        ({"pp": 8, "dp": 8, "tp": 8}, "is 512, not the 8 GPUs; leave one of them out"),
        ({"pp": 2, "dp": 1, "cp": 1, "tp": 2}, "is 4, not the 8 GPUs; use pp=4 or dp=2 or cp=2 or"),
        ({"pp": 4, "tp": 4}, "pp=4 times tp=4 is 16, no divisor of the 8 GPUs; use pp=2 or tp=2"),
        ({"pp": 1, "schedule": "1f1b"}, "schedule=1f1b needs a pipeline and pp=1 has none"),
        ({"pp": 2, "schedule": "none"}, "pp=2 needs a pipeline and schedule=none has none"),
        ({"pp": 1, "stages_per_rank": 2}, "stages_per_rank=2 needs a pipeline"),
        ({"pp": 1, "outermost": "dp"}, "outermost=dp needs a pipeline and pp=1"),
        ({"schedule": "1f1b", "stages_per_rank": 2}, "stages_per_rank can be 1$"),
        ({"schedule": "zbv", "stages_per_rank": 2}, "schedule=zbv is not searched; use"),
        ({"dp": 4, "replicas": 3}, "replicas=3 does not divide the 4 .* can be 1, 2, 4$"),
        ({"pp": 2, "tp": 2, "replicas": 4}, "replicas=4 does not divide the 2 .* can be 1, 2$"),
        ({"zero": 0, "replicas": 2}, "zero=0 splits nothing"),
    ],
)  # fmt: skip
def test_pins_of_pipelines_that_hold_for_no_model(pins: dict[str, Any], named: str) -> None:
    with pytest.raises(PlanError, match=named):
        job(pins=Pins(**pins), planned_only=True)


@pytest.mark.parametrize(
    "pins",
    [
        {"pp": 2, "dp": 2, "tp": 2},
        {"pp": 4, "schedule": "interleaved_1f1b", "stages_per_rank": 3},
        {"pp": 2, "schedule": "zero_bubble", "stages_per_rank": 1, "outermost": "dp"},
        {"dp": 2, "tp": 2},
        {"dp": 8, "zero": 3, "replicas": 2},
    ],
)
def test_pins_of_pipelines_that_can_hold(pins: dict[str, Any]) -> None:
    assert job(pins=Pins(**pins), planned_only=True).pins == Pins(**pins)


def test_pins_from_text() -> None:
    given = {"dp": "2", "tp": 4, "zero": "0", "recompute": "full"}
    assert request.make_pins(given) == Pins(dp=2, tp=4, zero=0, recompute="full")
    pipeline = {"pp": "4", "schedule": "1f1b", "stages_per_rank": "1", "outermost": "dp"}
    assert request.make_pins(pipeline | {"replicas": 2}) == Pins(
        pp=4, schedule="1f1b", stages_per_rank=1, outermost="dp", replicas=2
    )
    assert request.make_pins(None) == Pins()
    assert request.make_pins(Pins(tp=2)) == Pins(tp=2)


@pytest.mark.parametrize(
    ("pin", "named"),
    [
        ({"zeroo": 2}, "unknown pin 'zeroo'; did you mean 'zero'"),
        ({"tp": "two"}, "tp=two"),
        ({"tp": 0}, "tp=0"),
        ({"tp": "-1"}, "tp=-1"),
        ({"tp": "²"}, "tp=²"),
        ({"zero": 4}, "zero=4: expected a number from 0 to 3"),
        (
            {"schedule": "1fib"},
            "unknown pin schedule '1fib'; did you mean '1f1b'",
        ),
        ({"schedule": 1}, "pin schedule 1 is no name; choose from none, gpipe, 1f1b"),
        ({"outermost": "tp"}, "unknown pin outermost 'tp'; .*choose from pp, dp"),
        ({"stages_per_rank": "0"}, "stages_per_rank=0: expected a number from 1"),
        ({"replicas": "two"}, "replicas=two: expected a number from 1"),
        ({"recompute": "some"}, "unknown pin recompute 'some'; .*choose from none, full"),
        ({"recompute": 6}, "pin recompute 6 is no name; choose from none, full"),
    ],
)
def test_pins_that_cannot_be(pin: dict[str, int | str], named: str) -> None:
    with pytest.raises(PlanError, match=named):
        request.make_pins(pin)


@pytest.mark.parametrize("asked", [request.make_pins, request.make_question])
def test_pins_that_are_no_names_with_values(asked) -> None:
    with pytest.raises(PlanError, match=r"as in \{'tp': 2\}, not a list"):
        asked(["tp=2"])


def test_unknown_cluster() -> None:
    with pytest.raises(ProfileError, match=r"dgx-h10.*did you mean 'dgx-h100'"):
        request.load_cluster("dgx-h10")


@pytest.mark.parametrize(
    ("device", "device_gib", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", 79.6, True),
        ("NVIDIA H100 PCIe", 79.6, False),
        ("NVIDIA H100 NVL", 93.6, False),
        ("NVIDIA H200", 139.7, False),
        ("NVIDIA A100-SXM4-80GB", 79.3, False),
    ],
)
def test_a_profile_matches_its_own_device_only(
    device: str, device_gib: float, expected: bool
) -> None:
    cluster = request.load_cluster("dgx-h100")
    given = (cluster.device.name, cluster.device.memory_bytes, device, int(device_gib * GIB))
    assert matches(*given) == expected


def test_the_smaller_a100_is_not_the_larger() -> None:
    spec = request.load_cluster("dgx-a100-80g").device
    assert matches(spec.name, spec.memory_bytes, "NVIDIA A100-SXM4-80GB", int(79.3 * GIB))
    assert not matches(spec.name, spec.memory_bytes, "NVIDIA A100-SXM4-40GB", int(39.4 * GIB))
