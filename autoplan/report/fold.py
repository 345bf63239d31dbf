"""Repeated layers folded into one pattern: ``transformer.h.*.attn.c_attn.weight``.

Blocks of a region share their placements, so a plan holds them once; here the paths of the blocks
are folded too. An index that takes every value of the model's repeated layers becomes ``*``; when
several kinds share a pattern (dense and expert layers), each shows its own indices in braces. What
is placed alike in all regions of a kind stands once, the rest by region.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from autoplan.plan import RegionPlan

_NUMBERED = re.compile(r"(.+)\.(\d+)", re.ASCII)


def parameter_rows(regions: Sequence[RegionPlan]) -> Iterator[tuple[str, str]]:
    """Name pattern and tensor-parallel placement of every parameter, the root's first."""
    kinds: dict[str, list[RegionPlan]] = {}
    for region in sorted(regions, key=lambda region: bool(region.blocks)):
        kinds.setdefault(region.kind, []).append(region)
    patterns = {kind: block_pattern(_blocks(members)) for kind, members in kinds.items() if kind}
    texts = list(patterns.values())
    for kind, members in kinds.items():
        is_one_of_several = texts.count(patterns.get(kind, "")) > 1
        for blocks, parameters, is_part in _variants(members):
            explicit = is_part or is_one_of_several
            prefix = block_pattern(blocks, explicit=explicit) if blocks else ""
            for name, placement in _folded(parameters):
                yield (f"{prefix}.{name}" if prefix else name), placement


def named_blocks(paths: Sequence[str], among: Sequence[str]) -> str:
    """Blocks in few words: ``layers 0-3, 16-19``.

    Args:
        among: all blocks of the model; where ``layers`` are several, each is named by its path.
    """
    every = {match[1] for path in among if (match := _NUMBERED.fullmatch(path))}
    short = [name.rpartition(".")[2] for name in every]
    found: dict[str, list[int] | None] = {}
    for path in paths:
        match = _NUMBERED.fullmatch(path)
        if match is None:
            found[path] = None
            continue
        last = match[1].rpartition(".")[2]
        name = last if short.count(last) <= 1 else match[1]
        numbers = found.setdefault(name, [])
        if numbers is not None:
            numbers.append(int(match[2]))
    return ", ".join(f"{name} {ranges(n)}" if n else name for name, n in found.items())


def _blocks(regions: Sequence[RegionPlan]) -> tuple[str, ...]:
    return tuple(block for region in regions for block in region.blocks)


def _variants(
    regions: Sequence[RegionPlan],
) -> Iterator[tuple[tuple[str, ...], dict[str, str], bool]]:
    """Blocks with what is placed alike in them, and whether these are but a part of the kind's."""
    first = regions[0].parameters
    alike = {
        name: placement
        for name, placement in first.items()
        if all(region.parameters.get(name) == placement for region in regions)
    }
    yield _blocks(regions), alike, False
    apart: dict[tuple[tuple[str, str], ...], list[RegionPlan]] = {}
    for region in regions:
        rest = tuple((n, p) for n, p in region.parameters.items() if n not in alike)
        apart.setdefault(rest, []).append(region)
    for rest, members in apart.items():
        yield _blocks(members), dict(rest), True


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
