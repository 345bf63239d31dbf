"""Reading published measurements: numbers with notes, and files that are not of the format."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoplan.errors import AutoplanError
from autoplan.validation.published.numbers import NumberFault, count, flag, length, real, zero_stage
from autoplan.validation.published.rows import MeasurementsError, read_rows
from tests.unit.measured_rows import COMPLETE, csv_text, row_of, write_csv

DATA = Path(__file__).parents[2] / "benchmarks" / "data"
IN_FOLDER = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("48", 48),
        ("48 (assumed)", 48),
        ("1 (distributed optimizer)", 1),
        ("1,024", 1024),
        ("128.0", 128),
        ("~5", 5),
        ("8x", 8),
        ("", None),
        ("not stated", None),
        ("N/A", None),
    ],
)
def test_counts_with_notes(cell: str, value: int | None) -> None:
    assert count(cell) == value


@pytest.mark.parametrize("cell", ["abc", "1.5", "-1", "0", "inf", "1e400", "8k", "3_0", "9" * 40])
def test_a_count_that_is_none_is_a_fault(cell: str) -> None:
    with pytest.raises(NumberFault, match=r"is not|has the unit"):
        count(cell)


@pytest.mark.parametrize(
    ("cell", "value"),
    [("0.35", 0.35), ("0.35 s", 0.35), ("80GB", 80.0), ("1e-2", 0.01), ("2.5 (read off)", 2.5)],
)
def test_real_numbers(cell: str, value: float) -> None:
    assert real(cell) == value


@pytest.mark.parametrize("cell", ["350 ms", "350ms", "2 min", "40 %", "1.5h"])
def test_another_unit_is_never_taken_for_the_columns_own(cell: str) -> None:
    with pytest.raises(NumberFault, match="unit"):
        real(cell)


@pytest.mark.parametrize(
    "cell",
    [
        "16x8",
        "16 x 8",
        "2*4",
        "3,5",
        "3-4",
        "3 – 4",
        "7/2",
        "8±1",
        "2^10",
        "1 024",
        "1.2.3",
        "2 or 4",
    ],
)
def test_several_numbers_are_never_taken_for_their_first(cell: str) -> None:
    for read in (real, count, length):
        with pytest.raises(NumberFault, match="several numbers"):
            read(cell)


@pytest.mark.parametrize("cell", ["1e-10", "5e-324"])
def test_what_is_too_small_to_divide_by_is_a_fault(cell: str) -> None:
    with pytest.raises(NumberFault, match="is less than 1e-09"):
        real(cell)


@pytest.mark.parametrize(
    ("cell", "tokens"),
    [
        ("2048", 2048),
        ("longest example 1304 tokens (variable)", 1304),
        ("8k", 8192),
        ("128K (ring)", 131072),
        ("4,096", 4096),
        ("", None),
    ],
)
def test_sequence_lengths(cell: str, tokens: int | None) -> None:
    assert length(cell) == tokens


@pytest.mark.parametrize(
    ("cell", "stage"),
    [
        ("3 (FSDP 8)", 3),
        ("1 (distributed optimizer assumed)", 1),
        ("ZeRO-2", 2),
        ("zero stage 3", 3),
        ("FSDP", 3),
        ("FSDP (ZeRO-2)", 2),
        ("FSDP2", 3),
        ("distributed optimizer", 1),
        ("DDP", 0),
        ("none", 0),
        ("off", 0),
        ("0", 0),
        ("", None),
    ],
)
def test_zero_stages(cell: str, stage: int | None) -> None:
    assert zero_stage(cell) == stage


@pytest.mark.parametrize("cell", ["4", "13", "per-layer dp type 1 (sdp/ZeRO-3)", "1/2", "0-3"])
def test_what_is_not_one_zero_stage_is_a_fault(cell: str) -> None:
    with pytest.raises(NumberFault, match=r"ZeRO|several numbers"):
        zero_stage(cell)


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("yes (assumed; tp-comm-overlap requires it)", True),
        ("True", True),
        ("1", True),
        ("no", False),
        ("False", False),
        ("", None),
    ],
)
def test_flags(cell: str, value: bool | None) -> None:
    assert flag(cell) is value


@pytest.mark.parametrize(("name", "rows"), [("training", 399), ("training_bulk", 1656)])
def test_the_published_files_are_read_whole(name: str, rows: int) -> None:
    measured = read_rows(DATA / f"{name}.csv")
    assert len(measured.rows) == rows
    assert measured.notes == ()
    assert [row.id for row in measured.rows if row.faults] in ([], ["misc-126"])


@pytest.mark.parametrize(
    ("throughput", "step_time_s"),
    [
        ({"tokens_per_s": "79798"}, 39.42),
        ({"tokens_per_s_gpu": "103.904"}, 39.42),
        ({"samples_per_s": "38.964"}, 39.42),
        ({"samples_per_s": "38.964", "tokens_per_s": "1"}, 39.42),
        ({"tokens_per_s": "79798", "global_batch_seqs": ""}, None),
        ({"tokens_per_s": "79798", "seq_len": "longest 2048 (variable)"}, None),
        ({"tokens_per_s": "79798", "task": "layer forward"}, None),
        ({"tflops_per_gpu": "149"}, None),
        ({}, None),
    ],
)
def test_step_times_follow_from_throughputs(
    tmp_path: Path, throughput: dict[str, str], step_time_s: float | None
) -> None:
    """1536 sequences of 2048 tokens in 39.42 s, on 768 GPUs."""
    row = row_of(tmp_path, step_time_s="", **throughput)
    assert row.step_time_s == (step_time_s and pytest.approx(step_time_s, rel=1e-3))


def test_a_step_time_comes_before_throughputs_and_a_bad_one_is_a_fault(tmp_path: Path) -> None:
    assert row_of(tmp_path, step_time_s="39.421", tokens_per_s="5").step_time_s == 39.421
    assert row_of(tmp_path, step_time_s="", tokens_per_s="fast").faults == (
        "tokens_per_s: 'fast' is not a number",
    )


def test_missing_optional_columns_and_unknown_ones_are_fine(tmp_path: Path) -> None:
    path = write_csv(tmp_path, {"dp": None, "notes": None, "colour": "blue"})
    measured = read_rows(path)
    assert measured.rows[0].dp is None
    assert measured.notes == ("columns ignored: colour",)


def test_missing_columns_are_named(tmp_path: Path) -> None:
    path = write_csv(tmp_path, {"layers": None, "gpu": None})
    with pytest.raises(MeasurementsError, match=r"no column layers, gpu;") as raised:
        read_rows(path)
    assert "\n" not in str(raised.value)


def test_a_cell_that_cannot_be_read_is_a_fault_of_its_row_alone(tmp_path: Path) -> None:
    path = write_csv(tmp_path, {"tp": "eight"}, {"id": "run-2"})
    first, second = read_rows(path).rows
    assert first.faults == ("tp: 'eight' is not a number",)
    assert second.faults == ()


def test_variable_lengths_are_remembered(tmp_path: Path) -> None:
    row = row_of(tmp_path, seq_len="longest example 1304 tokens (variable)")
    assert (row.seq_len, row.seq_varies) == (1304, True)
    assert not row_of(tmp_path, seq_len="2048").seq_varies


def test_quality_decides_what_is_scored(tmp_path: Path) -> None:
    scored = {quality: row_of(tmp_path, quality=quality).scored for quality in "ABCDR"}
    assert scored == {"A": True, "B": True, "C": False, "D": False, "R": False}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "no column id"),
        (b"a,b\n1,2\n", "no column id"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"id\0,set\n", "not text"),
        (csv_text({}).split("\n", maxsplit=1)[0].encode(), "has no rows"),
        (csv_text({}).encode() + b"one,two\n", "2 cells for"),
        (csv_text({}).replace("heads", "layers", 1).encode(), "no column heads"),
        (b'id,set\n"open', "no column"),
        (csv_text({}).replace("kv_heads", "tp", 1).encode(), "column tp more than once"),
        (csv_text({}).encode() + b'"open', "not CSV"),
    ],
)
def test_what_is_no_such_file_is_refused_in_one_line(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    with pytest.raises(MeasurementsError, match=complaint) as raised:
        read_rows(path)
    assert "\n" not in str(raised.value)


def test_a_byte_order_mark_and_empty_lines_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(b"\xef\xbb\xbf" + csv_text({}, {"id": "run-2"}).encode() + b"\r\n\r\n")
    assert [row.id for row in read_rows(path).rows] == ["run-1", "run-2"]


def test_texts_cannot_move_a_terminals_cursor(tmp_path: Path) -> None:
    row = row_of(tmp_path, model="GPT\x1b[2J 1T\nx", tp="\x1b[2Jeight")
    assert row.model == "GPT [2J 1T x"
    assert all(fault.isprintable() for fault in row.faults)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasurementsError, match="directory"):
        read_rows(tmp_path)


@IN_FOLDER
@given(content=st.binary(max_size=300))
def test_any_bytes_are_read_or_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    with pytest.raises(AutoplanError):
        read_rows(path)


@IN_FOLDER
@given(cell=st.text(max_size=30), column=st.sampled_from(sorted(COMPLETE)))
def test_any_cell_is_read_or_a_fault(tmp_path: Path, cell: str, column: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(csv_text({column: cell.replace("\0", "")}).encode("utf-8", "replace"))
    assert len(read_rows(path).rows) == 1
