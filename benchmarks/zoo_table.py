"""A table of the zoo: ``python -m benchmarks.zoo_table --resume rows.jsonl``.

For every model: its operators and those with a rule, seconds of tracing, what planning it on one
and on eight DGX H100 takes and gives, and under how many plans its tiny twin trains as on one
device. Rows are kept in a file as they are made, and ``--resume`` goes on with it; with ``--print``
nothing is found anew. Tables are printed, or written to ``--write``. Models that are the first of
their family come first. Ends with 1 where anything failed or differs.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from autoplan.zoo.presets import PRESETS
from benchmarks.zoo.lines import is_right
from benchmarks.zoo.page import page
from benchmarks.zoo.records import PARTS, Part, Record, Records, Trained


def in_order(models: Sequence[str]) -> list[str]:
    """The models, the first of each family before all others."""
    first: dict[str, str] = {}
    for model in models:
        first.setdefault(PRESETS[model].model_type, model)
    return [*first.values(), *(model for model in models if model not in first.values())]


def fill(records: Records, models: Sequence[str], parts: Sequence[Part]) -> None:
    """Finds what the records lack, and what failed, anew; says so on stderr."""
    from benchmarks.zoo.measure import found

    for model in models:
        for part in parts:
            known = records.get(model, part)
            if known is not None and not known.failed:
                continue
            started_s = time.perf_counter()
            record = _of_same_twin(records, model) if part == "parity" else None
            record = record or found(model, part)
            records.add(record)
            seconds = time.perf_counter() - started_s
            said = record.failed or "done"
            print(f"{model}: {part} {said} ({seconds:.0f} s)", file=sys.stderr, flush=True)


def _of_same_twin(records: Records, model: str) -> Record | None:
    """The record of a model that has the same tiny twin."""
    from tests.families import twin_key

    key = twin_key(model, **PRESETS[model].dropout)
    for record in records:
        if record.part == "parity" and not record.failed:
            like = Trained(**record.found).like
            if twin_key(like, **PRESETS[like].dropout) == key:
                return Record(model=model, part="parity", found=record.found)
    return None


def _quiet() -> None:
    import torch

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A table of the models of the zoo")
    parser.add_argument("--models", nargs="+", choices=list(PRESETS), default=list(PRESETS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--resume", type=Path, help="file of rows, gone on with or begun")
    parser.add_argument("--print", action="store_true", help="find nothing, print what there is")
    parser.add_argument("--write", type=Path, help="file of the tables, in place of the screen")
    given = parser.parse_args(arguments)
    records = Records(given.resume)
    if not given.print:
        _quiet()
        fill(records, in_order(given.models), given.parts)
    written = page(records, given.models)
    if given.write is None:
        print(written)
    else:
        given.write.write_text(written, encoding="utf-8")
    return 0 if all(map(is_right, records)) else 1


if __name__ == "__main__":
    sys.exit(main())
