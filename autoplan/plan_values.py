"""Which values a plan file may hold, each for itself: reports divide, round and print them.

The rules follow the names of members: seconds end in ``_s``, speeds in ``_per_s``; what else is a
fraction is a share. Limits are far beyond any training, so that sums and ratios of what lies within
them are finite. Text has no control characters, which a terminal would obey.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import pairwise

from autoplan.plan import Plan
from autoplan.plan_details import Outlook, ScalingPoint
from hardware_profiles.validation import one_line

LONGEST_S = 1e9
"""Some thirty years: no step takes as long."""

_FASTEST_PER_S = 1e15
_LARGEST_SHARE = 1e3
_ROUNDING = 1e-6
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Negative numbers there are inputs of a block.
_SIGNED = ("source",)


def stray_value(plan: Plan) -> tuple[str, str] | None:
    """The first member whose value no plan has, as a path of the plan file, and what is wrong."""
    for path, value in _members(plan, ()):
        # Differences of seconds may be below zero by what rounding makes of them.
        fault = _fault(path, value, least=-_ROUNDING * plan.estimate.step_s)
        if fault is not None:
            return one_line(".".join(path)), fault
    return None if plan.outlook is None else _stray_size(plan.outlook)


def _members(node: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every number and text; keys of mappings too, as members of the mapping."""
    if is_dataclass(node):
        for field in fields(node):
            yield from _members(getattr(node, field.name), (*path, field.name))
    elif isinstance(node, Mapping):
        for key, value in node.items():
            yield path, key
            yield from _members(value, (*path, key))
    elif isinstance(node, tuple):
        for index, value in enumerate(node):
            yield from _members(value, (*path, str(index)))
    else:
        yield path, node


def _fault(path: tuple[str, ...], value: object, *, least: float) -> str | None:
    if isinstance(value, str):
        return f"{one_line(repr(value))} has control characters" if _CONTROL.search(value) else None
    if isinstance(value, int):
        return f"{value} is less than none" if value < 0 and path[-1] not in _SIGNED else None
    if not isinstance(value, float):
        return None
    most, unit = _most(path)
    if value < least:
        return f"{value}{unit} is less than none"
    return f"{value}{unit} is more than any training has" if value >= most else None


def _most(path: tuple[str, ...]) -> tuple[float, str]:
    """The limit of a number and its unit; members of a mapping have those of the mapping."""
    names = [name for name in path[-2:] if name.endswith("_s")]
    if not names:
        return _LARGEST_SHARE, ""
    return (_FASTEST_PER_S, " per s") if names[-1].endswith("_per_s") else (LONGEST_S, " s")


def _stray_size(outlook: Outlook) -> tuple[str, str] | None:
    for number, point in enumerate(outlook.scaling):
        fault = _fault_of_point(point)
        if fault is not None:
            return f"outlook.scaling.{number}.{fault[0]}", fault[1]
    for number, (before, after) in enumerate(pairwise(outlook.scaling), 1):
        if after.nodes <= before.nodes:
            told = f"{after.nodes} come after {before.nodes}; nodes ascend"
            return f"outlook.scaling.{number}.nodes", told
    for name in ("largest_microbatch", "longest_sequence"):
        limit = getattr(outlook, name)
        if limit is not None and limit.value < 1:
            return f"outlook.{name}.value", f"{limit.value} is less than one"
    return None


def _fault_of_point(point: ScalingPoint) -> tuple[str, str] | None:
    """The member that is wrong, and why: what is planned has seconds and samples that agree."""
    for name in ("nodes", "devices", "global_batch"):
        if getattr(point, name) < 1:
            return name, f"{getattr(point, name)} is less than one"
    if point.step_s is None or point.samples_per_s is None:
        if point.step_s == point.samples_per_s:
            return None
        return "samples_per_s", "only one of it and step_s is given"
    if point.step_s <= 0:
        return "step_s", f"{point.step_s} s is less than any step takes"
    samples = point.samples_per_s * point.step_s
    if abs(samples - point.global_batch) > _ROUNDING * point.global_batch:
        told = f"{point.samples_per_s} in steps of {point.step_s} s is not the batch"
        return "samples_per_s", f"{told} of {point.global_batch}"
    return None
