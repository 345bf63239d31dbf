"""The page about the zoo: what its tables say, and where and when they were made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import date
from statistics import median

from benchmarks.plan_speed import processor
from benchmarks.zoo.lines import family_lines, model_lines, plan_lines
from benchmarks.zoo.records import Planned, Records

_TEXT = """# The zoo

All models that are planned by name, traced, planned on one and on eight DGX H100 (8 samples a GPU),
and trained. Made by `python -m benchmarks.zoo_table --resume rows.jsonl --write docs/zoo.md`, which
goes on with a file of rows; `-` is what was not run.

- *operators* are the calls of the graph; *with a rule* are those that autoplan knows how to split;
  *opaque* are kinds of operators without a rule.
- *trace* is both exports and all that is read off them, without imports and without building the
  model.
- *plan* is one cold process of `autoplan plan`, from its start to its end, with its imports:
  seconds of the processor, and by the clock.
- *parity*: a twin of the model with two layers (two blocks a stage), small widths and the
  published config otherwise, its dropout included, trained for three steps of Adam by 4 gloo
  processes under each of several plans (dp4 with ZeRO 3; tp4; dp2 x tp2 with ZeRO 1; pp2 x dp2, or
  two replicas with ZeRO 2 where a model cannot be cut): plans under which the losses of all steps,
  the gradients of the first, and the weights and buffers after the last equal those of one device
  within rounding, of the plans that were run. Models that differ in sizes alone share a twin.
"""


def page(records: Records, models: Sequence[str]) -> str:
    """The page with the records of these models."""
    machine = f"{processor()}, {os.cpu_count()} cores, {date.today().isoformat()}."
    return "\n".join(
        [
            _TEXT,
            f"{machine}{_beside(records)}",
            *("", "## Families", "", *family_lines(records, models)),
            *("", "## Models", "", *model_lines(records, models)),
            *("", "## Plans", "", *plan_lines(records, models)),
            "",
        ]
    )


def _beside(records: Records) -> str:
    """What else the machine did while plans were made."""
    planned = [r for r in records if r.part in ("plan 8", "plan 64") and not r.failed]
    loads = [load for record in planned if (load := Planned(**record.found).load)]
    if not loads:
        return ""
    busy = f" While planning, {median(loads):.0f} processes at the median ran or waited to"
    return f"{busy}; both kinds of seconds are longer where these are more than the cores."
