"""Placements that the user has chosen for parameters, by globs of their names.

An override takes the choice of a parameter's storage on the ``tp`` axis from the search; all else
stays free. Blocks of a kind share one choice, so a glob takes corresponding parameters of all
blocks or of none. A shard is a shard: it leaves no mesh whose ``tp`` is 1.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType

from autoplan.errors import PlanError
from autoplan.search.folded_graph import FoldedGraph
from autoplan.sharding.placement import Placement, Replicate, Shard, divides

Given = tuple[tuple[str, str], ...]
_SHARD = re.compile(r"Shard\((?:dim=)?(\d{1,3})\)", re.ASCII)
_NAMES_TOLD = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Override:
    """The placement of one parameter, and the glob that says so."""

    glob: str
    name: str
    shape: tuple[int, ...]
    placement: Placement

    def splits(self, tp: int) -> bool:
        """Whether the placement can be had over ``tp`` ranks."""
        if not isinstance(self.placement, Shard):
            return True
        return tp > 1 and all(self.shape) and divides(self.placement, self.shape, tp)


Overrides = Mapping[str, Override]
NONE_GIVEN: Overrides = MappingProxyType({})


def given_placements(values: Mapping[str, object] | None) -> Given:
    """Overrides as a job holds them, from text or from DTensor's own placements.

    Raises:
        PlanError: not a placement that a parameter can be stored in.
    """
    return tuple(sorted((glob, repr(_placement(glob, v))) for glob, v in (values or {}).items()))


def overrides_of(folded: FoldedGraph, given: Given) -> Overrides:
    """The overridden parameters among the folded nodes, by name.

    Raises:
        PlanError: a glob that matches nothing or only some blocks of a kind, a dim that the
            parameter lacks, or globs that contradict each other.
    """
    if not given:
        return NONE_GIVEN
    decisions = _decisions(folded)
    found: dict[str, Override] = {}
    for glob, text in given:
        placement = _placement(glob, text)
        matched = [name for name, members in decisions.items() if _matches(glob, name, members)]
        if not matched:
            raise PlanError(_no_match(glob, decisions))
        for name in matched:
            shape = folded.graph.by_name[name].outputs[0].shape
            override = Override(glob=glob, name=name, shape=shape, placement=placement)
            _check_dim(override)
            known = found.setdefault(name, override)
            if known.placement != placement:
                raise PlanError(
                    f"placements {known.glob}={known.placement!r} and {glob}={placement!r} "
                    f"contradict each other for {name}; keep one of them"
                )
    return found


def splitting_all(overrides: Overrides, degrees: tuple[int, ...]) -> tuple[int, ...]:
    """The degrees of ``tp`` over which every overridden parameter can be placed.

    Raises:
        PlanError: there is none.
    """
    good = tuple(tp for tp in degrees if all(o.splits(tp) for o in overrides.values()))
    if good or not degrees:
        return good
    largest = max(degrees)
    first = next(o for o in overrides.values() if not o.splits(largest))
    what = f"placement {first.glob}={first.placement!r}"
    if largest == 1:
        raise PlanError(
            f"{what} splits {first.name} over tp, which can only be 1 with these GPUs, pins and "
            "sizes of the model; use Replicate()"
        )
    assert isinstance(first.placement, Shard)
    size = first.shape[first.placement.dim]
    tried = ", ".join(str(tp) for tp in degrees if tp > 1)
    raise PlanError(
        f"{what}: dim {first.placement.dim} of {first.name} has size {size}, which does not split "
        f"over tp={tried}; use another dim of {first.shape} or Replicate()"
    )


def _placement(glob: str, value: object) -> Placement:
    text = value if isinstance(value, str) else repr(value)
    if text == "Replicate()":
        return Replicate()
    match = _SHARD.fullmatch(text)
    if match is None:
        raise PlanError(
            f"placement {glob}={text}: expected Replicate() or Shard(dim) with a dim from 0 up"
        )
    return Shard(int(match[1]))


def _decisions(folded: FoldedGraph) -> dict[str, list[tuple[str, ...]]]:
    """For each folded parameter, the names of all that share its choice; tied ones have several."""
    graph = folded.graph
    tied = {names[0]: names for names in graph.tied}
    found: dict[str, list[tuple[str, ...]]] = {}
    for node in graph.of_kind("parameter"):
        name = node.name if node.name in folded.region else graph.representative[node.name]
        found.setdefault(name, []).append(tied.get(node.name, (node.name,)))
    return found


def _matches(glob: str, decision: str, members: Iterable[tuple[str, ...]]) -> bool:
    """Whether a glob takes all parameters of a decision; refused where it takes but some."""
    hits = {names[0]: any(fnmatchcase(name, glob) for name in names) for names in members}
    if len(set(hits.values())) == 1:
        return hits[decision]
    taken = next(name for name, hit in hits.items() if hit)
    left = next(name for name, hit in hits.items() if not hit)
    raise PlanError(
        f"placement {glob} takes {taken} but not {left}: repeated blocks share one placement; "
        f"match all of them, as {_pattern(taken)} does"
    )


def _check_dim(override: Override) -> None:
    placement, dims = override.placement, len(override.shape)
    if isinstance(placement, Shard) and placement.dim >= dims:
        known = f"dims 0 to {dims - 1}" if dims else "no dims"
        raise PlanError(
            f"placement {override.glob}={placement!r}: {override.name} of shape {override.shape} "
            f"has {known}; use one of them or Replicate()"
        )


def _no_match(glob: str, names: Iterable[str]) -> str:
    patterns = list(dict.fromkeys(_pattern(name) for name in names))
    close = difflib.get_close_matches(glob, patterns, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    more = ", ..." if len(patterns) > _NAMES_TOLD else ""
    return (
        f"placement {glob} matches no parameter; {hint}"
        f"parameters are {', '.join(patterns[:_NAMES_TOLD])}{more}"
    )


def _pattern(name: str) -> str:
    """The name with every index open."""
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))
