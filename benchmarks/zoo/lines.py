"""The records of the zoo as Markdown: a row for each model, or for each family of models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from autoplan.zoo.presets import PRESETS
from benchmarks.zoo.records import Planned, Record, Records, Traced, Trained

_PLANS = ("plan 8", "plan 64")
_NOTHING, _FAILED = "-", "**failed**"
_HEAD = [
    "model", "operators", "with a rule", "opaque", "trace CPU s", "parity",
    "plan, 8 GPUs: CPU s", "wall s", "plan, 64 GPUs: CPU s", "wall s",
]  # fmt: skip
_PLAN_HEAD = [
    "model", "8 GPUs", "step ms", "GiB", "gap", "64 GPUs", "step ms", "GiB", "gap",
]  # fmt: skip
_FAMILY_HEAD = [
    "family", "models", "operators", "with a rule", "opaque", "trace CPU s", "plan CPU s", "parity",
]  # fmt: skip


def is_right(record: Record) -> bool:
    """Whether a part was found, with nothing that differs from one device."""
    if record.failed:
        return False
    return record.part != "parity" or not Trained(**record.found).wrong


def model_lines(records: Records, models: Sequence[str]) -> list[str]:
    """A row for each model, and below them what failed, and what is refused."""
    rows = [_model_row(records, model) for model in models]
    return [*_table(_HEAD, rows), "", *_notes(records, models)]


def plan_lines(records: Records, models: Sequence[str]) -> list[str]:
    """The plan of each model, and below them what does not fit."""
    rows = [
        [model, *(cell for part in _PLANS for cell in _plan_cells(records.get(model, part)))]
        for model in models
    ]
    refused = [
        f"- {record.model}, {record.part.removeprefix('plan ')} GPUs: {planned.refused}"
        for record in _found(records, models, _PLANS)
        if (planned := Planned(**record.found)).refused
    ]
    return [*_table(_PLAN_HEAD, rows), "", *refused]


def family_lines(records: Records, models: Sequence[str]) -> list[str]:
    """A row for each family: what its models have, from the least to the most."""
    families: dict[str, list[str]] = {}
    for model in models:
        families.setdefault(PRESETS[model].model_type, []).append(model)
    rows = [_family_row(records, family, own) for family, own in families.items()]
    return _table(_FAMILY_HEAD, rows)


def _model_row(records: Records, model: str) -> list[str]:
    traced, parity = records.get(model, "trace"), records.get(model, "parity")
    cells = [model, *_traced_cells(traced), _parity_cell(parity)]
    for part in _PLANS:
        cells += _seconds_cells(records.get(model, part))
    return cells


def _traced_cells(record: Record | None) -> list[str]:
    if record is None or record.failed:
        return [_NOTHING if record is None else _FAILED] * 4
    found = Traced(**record.found)
    return [str(found.operators), str(found.known), str(found.opaque), f"{found.cpu_s:.1f}"]


def _parity_cell(record: Record | None) -> str:
    if record is None or record.failed:
        return _NOTHING if record is None else _FAILED
    found = Trained(**record.found)
    ran = len(found.equal) + len(found.wrong)
    text = f"{len(found.equal)} of {ran}"
    return f"**{text}**" if found.wrong else text


def _seconds_cells(record: Record | None) -> list[str]:
    if record is None or record.failed:
        return [_NOTHING if record is None else _FAILED] * 2
    found = Planned(**record.found)
    return [f"{found.cpu_s:.1f}", f"{found.wall_s:.0f}"]


def _plan_cells(record: Record | None) -> list[str]:
    if record is None or record.failed:
        return [_NOTHING if record is None else _FAILED] * 4
    found = Planned(**record.found)
    if found.refused:
        return ["does not fit", *[_NOTHING] * 3]
    step_ms, gib = f"{found.step_s * 1e3:.4g}", f"{found.peak_bytes / 2**30:.1f}"
    return [found.shape, step_ms, gib, f"{found.gap:.1%}"]


def _family_row(records: Records, family: str, models: Sequence[str]) -> list[str]:
    traced = [Traced(**r.found) for r in _found(records, models, ("trace",))]
    planned = [Planned(**r.found) for r in _found(records, models, _PLANS)]
    twins = {Trained(**r.found).like: r for r in _found(records, models, ("parity",))}
    trained = [Trained(**record.found) for record in twins.values()]
    equal = sum(len(twin.equal) for twin in trained)
    ran = equal + sum(len(twin.wrong) for twin in trained)
    return [
        family,
        str(len(models)),
        _span([found.operators for found in traced]),
        _known(traced),
        str(max((found.opaque for found in traced), default=_NOTHING)),
        _span([found.cpu_s for found in traced]),
        _span([found.cpu_s for found in planned]),
        f"{equal} of {ran}",
    ]


def _known(traced: Sequence[Traced]) -> str:
    if not traced:
        return _NOTHING
    return "all" if all(found.known == found.operators for found in traced) else "**not all**"


def _found(records: Records, models: Sequence[str], parts: Iterable[str]) -> list[Record]:
    return [r for r in records if r.model in models and r.part in parts and not r.failed]


def _span(values: Sequence[float]) -> str:
    if not values:
        return _NOTHING
    least, most = (
        f"{v:.1f}" if isinstance(v, float) else str(v) for v in (min(values), max(values))
    )
    return least if least == most else f"{least} to {most}"


def _notes(records: Records, models: Sequence[str]) -> Iterator[str]:
    for record in records:
        if record.model not in models:
            continue
        if record.failed:
            yield f"- {record.model}, {record.part}: {record.failed}"
        elif record.part == "parity":
            found = Trained(**record.found)
            if found.like == record.model:
                for way, why in found.refused.items():
                    yield f"- twin of {record.model}, {way}: {why}"
                for way, share in found.wrong.items():
                    yield f"- twin of {record.model}, {way}: differs by {share:.1e}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
