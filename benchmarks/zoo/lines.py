"""The records of the zoo as Markdown: a row for each model, or for each family of models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autoplan.zoo.presets import PRESETS
from benchmarks.zoo.records import Planned, Record, Records, Traced, Trained

_PLANS = ("plan 8", "plan 64")
_NOTHING, _FAILED = "-", "**failed**"
_HEAD = [
    "model", "operators", "with a rule", "opaque", "trace CPU s", "parity",
    "8 GPUs: CPU s", "wall s", "step ms", "GiB", "gap", "plan",
    "64 GPUs: CPU s", "wall s", "step ms", "GiB", "gap", "plan",
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
    """A row for each model, and below them what failed, what does not fit and what is refused."""
    rows = [_model_row(records, model) for model in models]
    return [*_table(_HEAD, rows), "", *_notes(records, models)]


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
        cells += _plan_cells(records.get(model, part))
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


def _plan_cells(record: Record | None) -> list[str]:
    if record is None or record.failed:
        return [_NOTHING if record is None else _FAILED] * 6
    found = Planned(**record.found)
    seconds = [f"{found.cpu_s:.1f}", f"{found.wall_s:.0f}"]
    if found.refused:
        return [*seconds, *[_NOTHING] * 3, "does not fit"]
    return [
        *seconds,
        f"{found.step_s * 1e3:.4g}",
        f"{found.peak_bytes / 2**30:.1f}",
        f"{found.gap:.1%}",
        found.shape,
    ]


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


def _notes(records: Records, models: Sequence[str]) -> list[str]:
    lines = []
    for record in records:
        if record.model not in models:
            continue
        if record.failed:
            lines.append(f"- {record.model}, {record.part}: {record.failed}")
        elif record.part == "parity":
            found = Trained(**record.found)
            if found.like == record.model:
                refused = found.refused.items()
                lines += [f"- twin of {record.model}, {way}: {why}" for way, why in refused]
                lines += [
                    f"- twin of {record.model}, {way}: differs by {share:.1e}"
                    for way, share in found.wrong.items()
                ]
        elif record.part in _PLANS and (refused := Planned(**record.found).refused):
            lines.append(f"- {record.model}, {record.part.removeprefix('plan ')} GPUs: {refused}")
    return lines


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
