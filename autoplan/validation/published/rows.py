"""Published measurements of training, one row each, read from a CSV file.

Columns are found by name. Those that every row needs must be there; others may be missing, and
unknown ones are ignored with a note. A cell that cannot be read is a fault of its row, so that the
other rows of a file are still compared. Where a source gives its throughput alone, the step time
follows from it and the batch; not from rates of flops, which are counted in several ways.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from autoplan.errors import AutoplanError
from autoplan.validation.published.numbers import NumberFault, count, flag, length, real, zero_stage

LARGEST_FILE_BYTES = 64 * 2**20
MOST_ROWS = 100_000
QUALITIES = ("A", "B", "C", "D", "R")
SCORED = ("A", "B")


class MeasurementsError(AutoplanError):
    """A file that is not a table of published measurements."""


class IncompleteRowError(AutoplanError):
    """A row that cannot be priced; the message is the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRow:
    """One run as published; None, and empty text, where the row leaves it open.

    Attributes:
        set: measurements of one source, summarised together.
        quality: A and B are scored; C (read off a chart), D (from memory) and R (a reference) not.
        seq_varies: sequences differ in length; ``seq_len`` is then the longest.
        step_time_s: of one optimizer step (of one pass of a layer where ``task`` says so); the
            global batch over the throughput where the column is empty.
        peak_mem_gb: in 1e9 bytes or in GiB, as ``mem_kind`` says.
        oom: the run did not fit.
        sharding: the words of the column ``zero``.
        faults: cells that cannot be read, with the column.
    """

    line: int
    id: str
    set: str
    quality: str
    source: str
    verified: str
    task: str
    model: str
    arch: str
    ffn_type: str
    gpu: str
    interconnect: str
    framework: str
    recompute: str
    precision: str
    attn_impl: str
    offload: str
    mem_kind: str
    config_complete: str
    notes: str
    sharding: str
    n_params_b: float | None
    layers: int | None
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    ffn: int | None
    vocab: int | None
    seq_len: int | None
    seq_varies: bool
    moe_experts: int | None
    moe_topk: int | None
    moe_ffn: int | None
    gpu_mem_gb: float | None
    n_gpus: int | None
    gpus_per_node: int | None
    global_batch_seqs: int | None
    micro_batch: int | None
    grad_accum: int | None
    tp: int | None
    pp: int | None
    vpp: int | None
    dp: int | None
    cp: int | None
    ep: int | None
    zero: int | None
    seq_parallel: bool | None
    step_time_s: float | None
    peak_mem_gb: float | None
    oom: bool | None
    faults: tuple[str, ...]

    @property
    def scored(self) -> bool:
        return self.quality in SCORED

    @property
    def complete(self) -> bool:
        """The source states the whole configuration."""
        return self.config_complete.lower().startswith("yes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurements:
    """The rows of one file, and what was ignored in it."""

    rows: tuple[MeasuredRow, ...]
    notes: tuple[str, ...]


_Parser = Callable[[str], int | float | bool | None]
_OF_TYPE: Mapping[str, _Parser] = {"int | None": count, "float | None": real, "bool | None": flag}
_OF_COLUMN: Mapping[str, _Parser] = {"seq_len": length, "zero": zero_stage}
_TEXTS = frozenset(field.name for field in fields(MeasuredRow) if field.type == "str")
_PARSERS: Mapping[str, _Parser] = {
    field.name: _OF_COLUMN.get(field.name, _OF_TYPE[str(field.type)])
    for field in fields(MeasuredRow)
    if field.type in _OF_TYPE
}
_NEEDED = (
    *("id", "set", "quality", "model", "layers", "hidden", "heads", "seq_len", "gpu", "n_gpus"),
    *("micro_batch", "global_batch_seqs", "step_time_s"),
)
_THROUGHPUTS = ("samples_per_s", "tokens_per_s", "tokens_per_s_gpu")
_UNUSED = frozenset(
    (
        *("dims_basis", "step_time_basis", "tflops_per_gpu", "tflops_kind", "mfu_pct", "hfu_pct"),
        *_THROUGHPUTS,
    )
)
_ZERO_IS_NONE = frozenset(("moe_experts", "moe_topk", "moe_ffn", "step_time_s", "peak_mem_gb"))


def read_rows(path: Path) -> Measurements:
    """Reads a file of measurements.

    Raises:
        MeasurementsError: not a CSV file of this format, or too large.
    """
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    try:
        header = [_one_line(name) for name in next(reader, [])]
        _check_header(path, header)
        rows = tuple(
            _row(dict(zip(header, cells, strict=True)), reader.line_num)
            for cells in _checked(path, header, reader)
        )
    except csv.Error as error:
        raise MeasurementsError(f"{path}, line {reader.line_num}: not CSV: {error}") from None
    if not rows:
        raise MeasurementsError(f"{path} has no rows; expected one published measurement a row")
    return Measurements(rows=rows, notes=tuple(_notes(header, rows)))


def _text(path: Path) -> str:
    if path.is_dir():
        raise MeasurementsError(f"{path} is a directory; give a CSV file of measurements")
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE_BYTES + 1)
    if len(content) > LARGEST_FILE_BYTES:
        raise MeasurementsError(f"{path} is larger than {LARGEST_FILE_BYTES // 2**20} MiB")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MeasurementsError(f"{path} is not UTF-8 text: {error.reason}") from None
    if "\0" in text:
        raise MeasurementsError(f"{path} is not text; expected a CSV file of measurements")
    return text


def _check_header(path: Path, header: list[str]) -> None:
    missing = [name for name in _NEEDED if name not in header]
    if missing:
        raise MeasurementsError(
            f"{path} is not a table of published measurements: no column"
            f" {', '.join(missing)}; benchmarks/data/training.csv is one"
        )
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise MeasurementsError(f"{path} has the column {', '.join(twice)} more than once")


def _checked(
    path: Path, header: list[str], cells_of_lines: Iterable[list[str]]
) -> Iterable[list[str]]:
    for number, cells in enumerate(filter(None, cells_of_lines), start=1):
        if number > MOST_ROWS:
            raise MeasurementsError(f"{path} has more than {MOST_ROWS} rows; split the file")
        if len(cells) != len(header):
            raise MeasurementsError(
                f"{path}, row {number}: {len(cells)} cells for {len(header)} columns"
            )
        yield cells


def _row(cells: Mapping[str, str], line: int) -> MeasuredRow:
    values: dict[str, Any] = {name: _one_line(cells.get(name, "")) for name in _TEXTS}
    faults: list[str] = []
    for column, parse in _PARSERS.items():
        cell = cells.get(column, "")
        values[column] = None
        if column in _ZERO_IS_NONE and cell.strip() in ("0", "0.0"):
            continue
        try:
            values[column] = parse(cell)
        except NumberFault as fault:
            faults.append(f"{column}: {fault}")
    values["sharding"] = _one_line(cells.get("zero", ""))
    values["quality"] = values["quality"].upper()[:1]
    words = cells.get("seq_len", "").lower()
    varies = "variable" in words or "longest" in words
    if values["step_time_s"] is None and not varies and "layer" not in values["task"].lower():
        try:
            values["step_time_s"] = _from_throughput(values, cells)
        except NumberFault as fault:
            faults.append(str(fault))
    return MeasuredRow(line=line, seq_varies=varies, faults=tuple(faults), **values)


def _from_throughput(values: Mapping[str, Any], cells: Mapping[str, str]) -> float | None:
    """Seconds of one step, from the first throughput that is given; None without one or a batch."""
    batch, tokens, gpus = (values[name] for name in ("global_batch_seqs", "seq_len", "n_gpus"))
    work = {
        "samples_per_s": batch,
        "tokens_per_s": batch and tokens and batch * tokens,
        "tokens_per_s_gpu": batch and tokens and gpus and batch * tokens / gpus,
    }
    for column in _THROUGHPUTS:
        try:
            rate = real(cells.get(column, ""))
        except NumberFault as fault:
            raise NumberFault(f"{column}: {fault}") from None
        if rate is not None and work[column] is not None:
            return work[column] / rate
    return None


def _one_line(text: str) -> str:
    """Without anything that would move a terminal's cursor."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _notes(header: list[str], rows: tuple[MeasuredRow, ...]) -> Iterable[str]:
    known = _TEXTS | set(_PARSERS) | _UNUSED
    unknown = [name for name in header if name not in known]
    if unknown:
        yield f"columns ignored: {', '.join(unknown)}"
    qualities = sorted({row.quality for row in rows} - set(QUALITIES))
    if qualities:
        yield f"qualities other than {', '.join(QUALITIES)} are not scored: {', '.join(qualities)}"
    ids = [row.id for row in rows]
    if len(set(ids)) < len(ids):
        yield f"{len(ids) - len(set(ids))} rows share an id with an earlier one"
