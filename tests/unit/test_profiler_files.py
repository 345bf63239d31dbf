"""Profiles are written as they are read, measured ones with their machine and digest."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.collectives import collective_s
from cost_models.compute import kernel_s
from cost_models.work import Gemm, Streaming
from hardware_profiles.load import ProfileFault, digest, load, load_facts, names, parse, parse_facts
from hardware_profiles.schema import MachineFacts
from hardware_profiles.sharing import busy_share, in_use
from hardware_profiles.spec import ClusterSpec
from hardware_profiles.write import save, to_toml

SHARED = 'busy_share.%d = { value = %r, provenance = "measured", source = "test" }\n'


def measured_facts():
    facts = load_facts("cpu-gloo")
    machine = MachineFacts(
        device='A "processor"',
        devices=4,
        cores=2,
        threads=1,
        memory_bytes=2**34,
        torch="2.13.0",
        measured_on="2026-11-30",
        digest=digest(facts),
    )
    return facts.model_copy(update={"machine": machine})


@pytest.mark.parametrize("name", names())
def test_what_is_written_reads_back(name):
    facts = load_facts(name)
    assert parse_facts(to_toml(facts), where=name) == facts


def test_a_measured_profile_keeps_its_machine(tmp_path):
    save(measured_facts(), tmp_path / "mine.toml")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]
    machine = load(tmp_path / "mine.toml").machine
    assert machine is not None
    assert (machine.device, machine.devices) == ('A "processor"', 4)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (
            "launch_s = { value = 1.1e-05",
            "launch_s = { value = 2e-05",
            "machine.digest: the figures",
        ),
        ("launch_s = { value = 1.1e-05", "launch_s = { value = '1e-5'", "device.launch_s.value"),
        ("cores = 2", "cores = 0", "machine.cores"),
        ("cores = 2", "cores = 2\nhost = 'x'", "machine.host: unknown field"),
        ('measured_on = "2026-11-30"', 'measured_on = "yesterday"', "machine.measured_on"),
        ('torch = "2.13.0"\n', "", "machine.torch"),
    ],
)
def test_edited_profiles_are_refused_by_key(old, new, complaint):
    text = to_toml(measured_facts())
    assert old in text
    with pytest.raises(ProfileFault, match=re.escape(complaint)):
        parse(text.replace(old, new, 1), where="mine.toml")


def test_a_profile_without_its_machine_may_be_edited():
    text = to_toml(load_facts("cpu-gloo")).replace("value = 1.1e-05", "value = 2e-05")
    assert parse(text, where="x").device.launch_s == 2e-05


def shared(shares: dict[int, float]) -> ClusterSpec:
    top, rest = to_toml(load_facts("cpu-gloo")).split("\n[device]")
    lines = "".join(SHARED % entry for entry in shares.items())
    return parse(f"{top}\n{lines}[device]{rest}", where="x")


def test_devices_that_do_not_notice_each_other_keep_their_rates():
    cluster = load("dgx-h100")
    assert in_use(cluster, 8) is cluster


def test_shares_are_those_stated_and_between_them_times_are_straight():
    cluster = shared({2: 0.8, 4: 0.4})
    found = [busy_share(cluster, devices) for devices in (1, 2, 3, 4, 8)]
    assert found == pytest.approx([1, 0.8, 1 / ((1 / 0.8 + 1 / 0.4) / 2), 0.4, 0.2])


@settings(deadline=None, max_examples=30)
@given(st.floats(0.01, 1), st.integers(2, 8))
def test_work_takes_longer_by_the_share(share, devices):
    cluster = shared({devices: share})
    busy = in_use(cluster, devices)
    for work in (Gemm(m=64, n=64, k=64, dtype="float32"), Streaming(bytes=1e6, kernels=3)):
        assert kernel_s(work, busy.device) == pytest.approx(kernel_s(work, cluster.device) / share)
    for kind in ("all_reduce", "send_recv"):
        assert collective_s(kind, 1e6, 2, 2, busy) == pytest.approx(
            collective_s(kind, 1e6, 2, 2, cluster) / share
        )
