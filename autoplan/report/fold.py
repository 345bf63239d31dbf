"""Repeated layers folded into one pattern: ``transformer.h.*.attn.c_attn.weight``.

Blocks of one kind share their placements, so a plan holds them once; here the paths of the blocks
are folded too. An index that takes every value of the model's repeated layers becomes ``*``; when
several kinds share a pattern (dense and expert layers), each shows its own indices in braces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from autoplan.plan import RegionPlan


def parameter_rows(regions: Sequence[RegionPlan]) -> Iterator[tuple[str, str]]:
    """Name pattern and tensor-parallel placement of every parameter, the root's first."""
    patterns = {region.kind: block_pattern(region.blocks) for region in regions if region.blocks}
    shared = {text for text in patterns.values() if list(patterns.values()).count(text) > 1}
    for region in sorted(regions, key=lambda region: bool(region.blocks)):
        prefix = patterns.get(region.kind, "")
        if prefix in shared:
            prefix = block_pattern(region.blocks, explicit=True)
        for name, placement in _folded(region.parameters):
            yield (f"{prefix}.{name}" if prefix else name), placement


def _folded(parameters: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Names that differ in indices only, folded where their placement is the same."""
    groups: dict[str, dict[str, list[str]]] = {}
    for name, placement in parameters.items():
        shape = ".".join("*" if part.isdecimal() else part for part in name.split("."))
        groups.setdefault(shape, {}).setdefault(placement, []).append(name)
    for by_placement in groups.values():
        for placement, names in by_placement.items():
            yield block_pattern(names, explicit=len(by_placement) > 1), placement


def block_pattern(paths: Sequence[str], *, explicit: bool = False) -> str:
    """One pattern for several block paths: ``h.0``, ``h.1`` give ``h.*``, or ``h.{0-1}``."""
    split = [path.split(".") for path in paths]
    if len({len(parts) for parts in split}) != 1:
        return "{" + ", ".join(paths) + "}"
    return ".".join(_fold(column, explicit) for column in zip(*split, strict=True))


def ranges(numbers: Sequence[int]) -> str:
    """``0-3, 6`` for 0, 1, 2, 3, 6."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _fold(column: Sequence[str], explicit: bool) -> str:
    values = list(dict.fromkeys(column))
    if len(values) == 1:
        return values[0]
    if not explicit:
        return "*"
    numeric = all(value.isdecimal() for value in values)
    return "{" + (ranges([int(v) for v in values]) if numeric else ", ".join(values)) + "}"
