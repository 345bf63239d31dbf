"""Rows of published measurements for tests: one complete row, and files of changed copies."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from autoplan.validation.published.rows import MeasuredRow, read_rows

# GPT-3 175B on 96 DGX A100 as Narayanan et al. 2021 give it in table 2.
COMPLETE: Mapping[str, str] = {
    "id": "run-1",
    "set": "one",
    "quality": "A",
    "task": "pretrain",
    "model": "GPT 174.6B",
    "arch": "gpt",
    "layers": "96",
    "hidden": "12288",
    "heads": "96",
    "kv_heads": "96",
    "head_dim": "128",
    "ffn": "49152",
    "ffn_type": "gelu",
    "vocab": "51200",
    "seq_len": "2048",
    "gpu": "A100-SXM-80GB",
    "gpu_mem_gb": "80",
    "n_gpus": "768",
    "gpus_per_node": "8",
    "interconnect": "Selene DGX A100 8x HDR200",
    "framework": "Megatron-LM",
    "source": "Narayanan et al. SC21 Table 2",
    "global_batch_seqs": "1536",
    "micro_batch": "1",
    "grad_accum": "192",
    "tp": "8",
    "pp": "12",
    "vpp": "1",
    "dp": "8",
    "cp": "1",
    "ep": "1",
    "zero": "0",
    "seq_parallel": "no",
    "recompute": "full",
    "precision": "fp16 mixed",
    "step_time_s": "39.421",
    "peak_mem_gb": "",
    "mem_kind": "",
    "oom": "",
    "config_complete": "yes",
    "notes": "",
}


def csv_text(*changes: Mapping[str, str | None]) -> str:
    """A file with one changed copy of the complete row for each mapping; None drops a column."""
    dropped = {name for change in changes for name, value in change.items() if value is None}
    extra = [name for change in changes for name in change if name not in COMPLETE]
    columns = [name for name in (*COMPLETE, *dict.fromkeys(extra)) if name not in dropped]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", restval="")
    writer.writeheader()
    writer.writerows({**COMPLETE, **change} for change in changes)
    return text.getvalue()


def write_csv(folder: Path, *changes: Mapping[str, str | None]) -> Path:
    path = folder / "runs.csv"
    path.write_text(csv_text(*changes))
    return path


def row_of(folder: Path, **changes: str) -> MeasuredRow:
    """The complete row with some cells changed."""
    return read_rows(write_csv(folder, changes)).rows[0]
