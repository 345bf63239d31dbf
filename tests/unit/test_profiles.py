"""Profiles: the ones that come with the package, and what the loader refuses."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles.load import ProfileFault, load, names, parse

DATA = Path(__file__).parents[2] / "hardware_profiles" / "data"
TEXT = (DATA / "dgx-h100.toml").read_text()


def test_known_profiles():
    assert names() == ("cpu-gloo", "dgx-a100-80g", "dgx-h100")


@pytest.mark.parametrize("name", ["cpu-gloo", "dgx-a100-80g", "dgx-h100"])
def test_profile_is_complete(name):
    cluster = load(name)
    assert cluster.name == name
    assert len(cluster.digest) == 64
    assert cluster.device.workspace_bytes < cluster.device.memory_bytes
    assert cluster.inter_node.bytes_per_s <= cluster.intra_node.bytes_per_s
    assert {"device.launch_s", "intra_node.efficiency", "max_nodes"} <= set(cluster.provenance)
    assert set(cluster.provenance.values()) <= {"datasheet", "measured", "fitted", "assumed"}


def test_datasheet_figures():
    h100, a100 = load("dgx-h100"), load("dgx-a100-80g")
    assert h100.device.peak_flops["bfloat16"] == 989e12
    assert h100.device.memory_bytes_per_s == 3350e9
    assert (h100.intra_node.bytes_per_s, h100.inter_node.bytes_per_s) == (450e9, 50e9)
    assert h100.intra_node.in_network_reduction
    assert a100.device.peak_flops["bfloat16"] == 312e12
    assert (a100.intra_node.bytes_per_s, a100.inter_node.bytes_per_s) == (300e9, 25e9)
    assert not a100.intra_node.in_network_reduction
    assert load("cpu-gloo").backend == "gloo"


def test_a_path_gives_the_same_profile_as_its_name(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(TEXT)
    assert load(path) == load(str(path)) == load("dgx-h100")


def test_digest_follows_figures_and_not_words():
    digest = load("dgx-h100").digest
    reworded = TEXT.replace('name = "dgx-h100"', 'name = "other"').replace("NVIDIA H100", "H100")
    assert parse(reworded, where="x").digest == digest
    respelled = TEXT.replace("value = 989e12", "value = 989_000_000_000_000.0")
    assert parse(respelled, where="x").digest == digest
    assert parse(TEXT.replace("989e12", "990e12"), where="x").digest != digest


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(ProfileFault, match=r"did you mean 'dgx-h100'\? known profiles: cpu-gloo"):
        load("dgx-h10")


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("launch_s =", "lunch_s =", "device.launch_s: Field required"),
        ("launch_s = {", "extra = 1\nlaunch_s = {", "device.extra: unknown field"),
        ("value = 0.716", "value = 1.2", "device.matmul_efficiency.value"),
        ("value = 0.716", "value = inf", "device.matmul_efficiency.value"),
        ("value = 0.716", 'value = "0.7"', "device.matmul_efficiency.value"),
        ("value = 0.716", "value = true", "device.matmul_efficiency.value"),
        ("value = 450e9", "value = -450e9", "intra_node.bytes_per_s.value"),
        ('"datasheet", source = "NVLink 4"', '"hearsay", source = "x"', "bytes_per_s.provenance"),
        ('provenance = "datasheet", source = "NVLink 4"', 'provenance = "datasheet"', "source"),
        ("value = 8,", "value = 8.0,", "gpus_per_node.value"),
        ("value = 2147483648", "value = 84933853184", "workspace_bytes leaves nothing"),
        ("peak_flops.float32", "peak_flops.float16x", "peak_flops.float16x"),
        ('backend = "nccl"', 'backend = "mpi"', "backend"),
        ('name = "dgx-h100"', 'name = "a/b"', "name"),
        ("[device]", "[device", "is not TOML"),
    ],
)
def test_malformed_profile_is_refused_by_field(old, new, where):
    assert old in TEXT
    with pytest.raises(ProfileFault, match=r"^profile x") as caught:
        parse(TEXT.replace(old, new, 1), where="x")
    assert where in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_float32_peak_is_refused():
    text = "\n".join(line for line in TEXT.splitlines() if "peak_flops.float32" not in line)
    with pytest.raises(ProfileFault, match=r"peak_flops\.float32 is missing"):
        parse(text, where="x")


def test_unreadable_files_are_refused(tmp_path):
    with pytest.raises(ProfileFault, match="No such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "large.toml").write_bytes(b"#" * (256 * 1024 + 1))
    with pytest.raises(ProfileFault, match="larger than"):
        load(tmp_path / "large.toml")
    (tmp_path / "latin.toml").write_bytes(b'name = "\xff"')
    with pytest.raises(ProfileFault, match="not UTF-8"):
        load(tmp_path / "latin.toml")
    with pytest.raises(ProfileFault, match="unknown profile"):
        load("")
    with pytest.raises(ProfileFault, match="cannot read"):
        load("a\0b.toml")


def test_deep_nesting_is_refused():
    with pytest.raises(ProfileFault):
        parse("x = " + "[" * 100_000, where="x")


def complaint_about(text: str) -> str:
    try:
        parse(text, where="x")
    except ProfileFault as fault:
        return str(fault)
    return ""


@settings(deadline=None, max_examples=60)
@given(st.integers(0, len(TEXT) - 1), st.text(max_size=5), st.integers(0, 40))
def test_a_changed_text_is_read_or_refused(start, inserted, cut):
    assert complaint_about(TEXT[:start] + inserted + TEXT[start + cut :]).isprintable()
