"""Profiles: the ones that come with the package, and what the loader refuses."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles.load import ProfileFault, load, names, parse

DATA = Path(__file__).parents[2] / "hardware_profiles" / "data"
NAMING = (DATA / "dgx-h100.toml").read_text()
PARTS = {
    "device": DATA / "devices" / "h100-sxm5-80gb.toml",
    "intra_node": DATA / "links" / "nvlink4-sharp.toml",
    "inter_node": DATA / "links" / "ib-ndr400.toml",
}
TEXT = "".join(line for line in NAMING.splitlines(True) if not line.startswith(tuple(PARTS)))
TEXT += "".join(f"\n[{table}]\n{path.read_text()}" for table, path in PARTS.items())
EFFICIENCY = re.findall(r"(?<=^matmul_efficiency = \{ )value = [0-9.]+", TEXT, re.MULTILINE)[0]
FACT = '{ value = %s, provenance = "assumed", source = "test" }'


def test_known_profiles():
    assert {"cpu-gloo", "dgx-a100-80g", "dgx-h100", "gb200-nvl72", "p4d"} <= set(names())


@pytest.mark.parametrize("part", [*DATA.glob("devices/*.toml"), *DATA.glob("links/*.toml")])
def test_every_device_and_link_is_used(part):
    assert any(f'= "{part.stem}"\n' in path.read_text() for path in DATA.glob("*.toml"))


@pytest.mark.parametrize("name", names())
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


def test_naming_the_parts_is_giving_their_tables():
    assert parse(TEXT, where="x") == parse(NAMING, where="x") == load("dgx-h100")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"h100-sxm5-80gb"', '"h100"', "device: no 'h100' among the devices that come with"),
        ('"ib-ndr400"', '"../dgx-h100"', "inter_node: no '../dgx-h100' among the links"),
        ('"ib-ndr400"', "3", "inter_node: Input should be"),
    ],
)
def test_unknown_parts_are_refused(old, new, complaint):
    with pytest.raises(ProfileFault, match=complaint):
        parse(NAMING.replace(old, new), where="x")


def test_adapters_and_domains():
    assert load("dgx-h100").network_share == 1
    assert load("p4d").network_share == 0.5
    assert load("p5").network_share == 4
    assert (load("gb200-nvl72").nodes_per_domain, load("dgx-h100").nodes_per_domain) == (18, 1)
    thinned = NAMING + "oversubscription = " + FACT % "2.0"
    assert parse(thinned, where="x").network_share == 0.5
    bare = "\n".join(line for line in NAMING.splitlines() if not line.startswith("nics"))
    assert parse(bare, where="x").network_share == 1


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("scaleup_gpus = " + FACT % "12", "not a multiple of gpus_per_node"),
        ("oversubscription = " + FACT % "0.5", "oversubscription.value"),
        ("step_jitter = " + FACT % "-0.1", "step_jitter.value"),
        (
            "price_per_gpu_hour_usd = " + (FACT % "2.0").replace("assumed", "measured"),
            "price_per_gpu_hour_usd is an assumption",
        ),
    ],
)
def test_impossible_clusters_are_refused(line, complaint):
    with pytest.raises(ProfileFault, match=complaint):
        parse(NAMING + line, where="x")


def test_jitter_is_a_figure_that_no_shipped_profile_has():
    assert all(load(name).step_jitter is None for name in names())
    jittery = parse(NAMING + "step_jitter = " + FACT % "0.02", where="x")
    assert jittery.step_jitter == 0.02
    assert jittery.provenance["step_jitter"] == "assumed"
    assert jittery.digest != load("dgx-h100").digest


def test_a_path_gives_the_same_profile_as_its_name(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(NAMING)
    assert load(path) == load(str(path)) == load("dgx-h100")


def test_digest_follows_figures_and_not_words():
    digest = load("dgx-h100").digest
    reworded = TEXT.replace('name = "dgx-h100"', 'name = "other"').replace("NVIDIA H100", "H100")
    assert parse(reworded, where="x").digest == digest
    respelled = TEXT.replace("value = 989e12", "value = 989_000_000_000_000.0")
    assert parse(respelled, where="x").digest == digest
    assert parse(TEXT.replace("989e12", "990e12"), where="x").digest != digest


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(ProfileFault, match=r"did you mean 'dgx-h100'\? known profiles: .*cpu-gloo"):
        load("dgx-h10")


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("launch_s =", "lunch_s =", "device.launch_s: Field required"),
        ("launch_s = {", "extra = 1\nlaunch_s = {", "device.extra: unknown field"),
        (EFFICIENCY, "value = 1.2", "device.matmul_efficiency.value"),
        (EFFICIENCY, "value = inf", "device.matmul_efficiency.value"),
        (EFFICIENCY, 'value = "0.7"', "device.matmul_efficiency.value"),
        (EFFICIENCY, "value = true", "device.matmul_efficiency.value"),
        ("value = 450e9", "value = -450e9", "intra_node.bytes_per_s.value"),
        ('"datasheet", source = "NVLink 4"', '"hearsay", source = "x"', "bytes_per_s.provenance"),
        ('provenance = "datasheet", source = "NVLink 4"', 'provenance = "datasheet"', "source"),
        ("value = 8,", "value = 8.0,", "gpus_per_node.value"),
        ("value = 2147483648", "value = 84933853184", "workspace_bytes leaves nothing"),
        ("peak_flops.float32", "peak_flops.float16x", "peak_flops.float16x"),
        ("value = 132,", "value = 132.0,", "device.sm_count.value"),
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


def test_multiprocessors_come_with_their_rate():
    text = "\n".join(line for line in TEXT.splitlines() if not line.startswith("sm_load"))
    with pytest.raises(ProfileFault, match="sm_count and sm_load_bytes_per_s go together"):
        parse(text, where="x")


@pytest.mark.parametrize("name", names())
def test_devices_of_clusters_say_how_kernels_fill_them(name):
    device = load(name).device
    stated = (device.sm_count, device.attention_forward_efficiency)
    assert all(stated) != (name == "cpu-gloo")


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
