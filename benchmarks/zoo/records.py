"""What was found of a model, one part at a time, kept as lines of JSON.

A file of records can be gone on with: what was found is not found anew. What failed is a record
too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Part = Literal["trace", "plan 8", "plan 64", "parity"]
PARTS: tuple[Part, ...] = ("trace", "plan 8", "plan 64", "parity")


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One part of what is found of a model.

    Attributes:
        found: ``Traced``, ``Planned`` or ``Trained`` as a dict, by part; empty where it failed.
        failed: why there is nothing; empty otherwise.
    """

    model: str
    part: Part
    found: dict[str, Any] = field(default_factory=dict)
    failed: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Traced:
    """How a model is traced.

    Attributes:
        operators: calls of the graph.
        known: those with a rule of how they split.
        opaque: operators without one, each counted once.
        cpu_s, wall_s: of tracing, both exports, without imports and without building the model.
    """

    operators: int
    known: int
    opaque: int
    cpu_s: float
    wall_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """One process of ``autoplan plan``.

    Attributes:
        cpu_s, wall_s: of the process, from its start to its end.
        load: processes that ran or waited to, in the last minute of it, on average; 0 if unknown.
        refused: why nothing fits; what follows is then 0.
        step_s, peak_bytes, gap: of the plan.
        shape: its mesh and ZeRO stage in a few words.
    """

    cpu_s: float
    wall_s: float
    load: float = 0.0
    refused: str = ""
    step_s: float = 0.0
    peak_bytes: int = 0
    gap: float = 0.0
    shape: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """How far the tiny twin of a model is from one device.

    Attributes:
        like: the model whose twin it is; another's where both have the same.
        equal: plans under which it is equal to one device.
        wrong, refused: the others, with the difference and with the reason.
        furthest: largest relative difference of any tensor.
    """

    like: str
    equal: tuple[str, ...] = ()
    wrong: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    furthest: float = 0.0


class Records:
    """The records of a file, which grows by those that are added; the last of a part counts.

    Args:
        path: None keeps them in memory alone.
    """

    def __init__(self, path: Path | None):
        self._path = path
        self._found: dict[tuple[str, str], Record] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._keep(Record(**json.loads(line)))

    def __iter__(self) -> Iterator[Record]:
        return iter(self._found.values())

    def get(self, model: str, part: Part) -> Record | None:
        """What is known of a part; None where it was not looked at."""
        return self._found.get((model, part))

    def add(self, record: Record) -> None:
        """Writes a record at once, so that nothing is lost when the process ends."""
        self._keep(record)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(record)) + "\n")

    def _keep(self, record: Record) -> None:
        self._found[record.model, record.part] = record
