"""The table of the zoo: what is kept of a run that ended early, and how rows are written."""

import pytest

from autoplan.zoo.presets import PRESETS
from benchmarks import zoo_table
from benchmarks.zoo.lines import family_lines, is_right, model_lines, plan_lines
from benchmarks.zoo.page import page
from benchmarks.zoo.records import Record, Records
from tests.families import twin_key

TRACED = {"operators": 120, "known": 118, "opaque": 1, "cpu_s": 1.24, "wall_s": 3.0}
PLANNED = {
    "cpu_s": 6.04, "wall_s": 7.6, "step_s": 0.1234, "peak_bytes": 3 * 2**30, "gap": 0.004,
    "shape": "dp8, ZeRO 1",
}  # fmt: skip
TRAINED = {"like": "gpt2", "equal": ("dp4", "tp4"), "furthest": 1e-15}


def trained(model: str, **found) -> Record:
    return Record(model=model, part="parity", found={**TRAINED, **found})


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_records_are_read_again_and_the_last_of_a_part_counts(tmp_path):
    path = tmp_path / "rows.jsonl"
    records = Records(path)
    records.add(Record(model="gpt2", part="trace", failed="no"))
    records.add(Record(model="gpt2", part="trace", found=TRACED))
    records.add(Record(model="gpt2", part="parity", found={}, failed="differs"))
    again = Records(path)
    assert list(again) == list(records)
    assert again.get("gpt2", "trace") == Record(model="gpt2", part="trace", found=TRACED)
    assert again.get("gpt2", "plan 8") is None


def test_only_what_is_missing_or_failed_is_found(monkeypatch, tmp_path):
    asked = []

    def found(model, part):
        asked.append(part)
        return Record(model=model, part=part, failed="not here" if part == "plan 64" else "")

    monkeypatch.setattr("benchmarks.zoo.measure.found", found)
    records = Records(tmp_path / "rows.jsonl")
    records.add(Record(model="gpt2", part="plan 8", found=PLANNED))
    zoo_table.fill(records, ["gpt2"], ["plan 8", "plan 64", "trace"])
    zoo_table.fill(Records(tmp_path / "rows.jsonl"), ["gpt2"], ["plan 8", "plan 64", "trace"])
    assert asked == ["plan 64", "trace", "plan 64"]


def test_models_of_the_same_twin_are_trained_once(monkeypatch):
    monkeypatch.setattr("benchmarks.zoo.measure.found", lambda model, part: trained(model))
    records = Records(None)
    zoo_table.fill(records, ["gpt2", "gpt2-xl"], ["parity"])
    xl = records.get("gpt2-xl", "parity")
    assert xl is not None
    assert xl.found["like"] == "gpt2"


def test_twins_differ_where_published_models_do_beyond_their_sizes():
    assert twin_key("gpt2") == twin_key("gpt2-xl")
    grouped = {twin_key(name) for name in ("llama2-7b", "llama2-70b")}
    assert len(grouped) == 2
    assert len({twin_key(name) for name in ("qwen2-0.5b", "qwen2-7b")}) == 2


def test_first_of_each_family_comes_first():
    models = zoo_table.in_order(list(PRESETS))
    families = [PRESETS[model].model_type for model in models]
    count = len(set(families))
    assert len(set(families[:count])) == count
    assert sorted(models) == sorted(PRESETS)


def test_a_row_has_what_was_found():
    records = Records(None)
    records.add(Record(model="gpt2", part="trace", found=TRACED))
    records.add(Record(model="gpt2", part="plan 8", found=PLANNED))
    records.add(trained("gpt2", wrong={"pp2": 0.5}, refused={"tp2": "no tp"}))
    lines = model_lines(records, ["gpt2"])
    assert cells(lines[2]) == [
        "gpt2", "120", "118", "1", "1.2", "**2 of 3**", "6.0", "8", "-", "-"
    ]  # fmt: skip
    assert lines[4:] == ["- twin of gpt2, tp2: no tp", "- twin of gpt2, pp2: differs by 5.0e-01"]
    plans = plan_lines(records, ["gpt2"])
    assert cells(plans[2]) == ["gpt2", "dp8, ZeRO 1", "123.4", "3.0", "0.4%", *"----"]


def test_what_failed_or_does_not_fit_is_shown():
    records = Records(None)
    records.add(Record(model="pangu-200b", part="trace", failed="cannot be traced"))
    refused = {"cpu_s": 5.0, "wall_s": 6.0, "refused": "needs 400 GiB"}
    records.add(Record(model="pangu-200b", part="plan 8", found=refused))
    lines = model_lines(records, ["pangu-200b"])
    assert cells(lines[2])[1:5] == ["**failed**"] * 4
    assert cells(lines[2])[6:8] == ["5.0", "6"]
    assert lines[4:] == ["- pangu-200b, trace: cannot be traced"]
    plans = plan_lines(records, ["pangu-200b"])
    assert cells(plans[2])[1:5] == ["does not fit", "-", "-", "-"]
    assert plans[4:] == ["- pangu-200b, 8 GPUs: needs 400 GiB"]


def test_a_family_has_its_least_and_most_and_each_twin_once():
    records = Records(None)
    for model, operators in (("gpt2", 120), ("gpt2-xl", 480)):
        found = {**TRACED, "operators": operators, "known": operators, "opaque": 0}
        records.add(Record(model=model, part="trace", found=found))
        records.add(trained(model, like="gpt2"))
    row = cells(family_lines(records, ["gpt2", "gpt2-xl"])[2])
    assert row == ["gpt2", "2", "120 to 480", "all", "0", "1.2", "-", "2 of 2"]


def test_a_page_says_how_busy_the_machine_was():
    records = Records(None)
    assert "While planning" not in page(records, ["gpt2"])
    for model, load in (("gpt2", 3.0), ("gpt2-xl", 5.0)):
        records.add(Record(model=model, part="plan 8", found={**PLANNED, "load": load}))
    assert "While planning, 4 processes at the median ran" in page(records, ["gpt2"])


@pytest.mark.parametrize(
    ("record", "right"),
    [
        (trained("gpt2"), True),
        (trained("gpt2", refused={"pp2": "cannot be cut"}), True),
        (trained("gpt2", wrong={"pp2": 0.1}), False),
        (Record(model="gpt2", part="plan 8", failed="a fault"), False),
    ],
)
def test_faults_and_differences_end_with_an_error(record, right):
    assert is_right(record) == right
