"""What a plan runs twice: whole blocks, and single operators of the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from autoplan.plan import Plan, RegionPlan
from autoplan.report.fold import block_pattern, named_blocks

_NAMES_TOLD = 6
_CALLS_TOLD = 2


def recompute(plan: Plan) -> str:
    """What runs again in the backward, a line for all blocks that are alike in it."""
    blocks = [block for region in plan.regions for block in region.blocks]
    recomputed = [block for region in plan.regions for block in region.recomputed]
    if _by_operator(plan):
        lines = _lines(plan.regions, blocks, recomputed)
        return "\n".join(["run again in the backward:", *lines])
    if not recomputed and any(region.reconverted_inputs for region in plan.regions):
        return "none, but what enters blocks is placed anew on tp in the backward"
    if not recomputed:
        return "none: all activations that the backward needs are kept"
    if len(recomputed) == len(blocks):
        return f"full: each of the {len(blocks)} blocks runs its forward again in the backward"
    which = ", ".join(
        block_pattern(region.recomputed, explicit=True)
        for region in plan.regions
        if region.recomputed
    )
    return (
        f"{len(recomputed)} of {len(blocks)} blocks run their forward again in the backward "
        f"({which})"
    )


def recompute_share(plan: Plan) -> str:
    """``none``, ``full``, how many blocks: ``6 of 12``, or ``by operator``."""
    if _by_operator(plan):
        return "by operator"
    blocks = sum(len(region.blocks) for region in plan.regions)
    recomputed = sum(len(region.recomputed) for region in plan.regions)
    if not recomputed:
        return "none"
    return "full" if recomputed == blocks else f"{recomputed} of {blocks}"


def _by_operator(plan: Plan) -> bool:
    return any(region.recomputed_operators for region in plan.regions)


def _lines(
    regions: Sequence[RegionPlan], blocks: Sequence[str], recomputed: Sequence[str]
) -> Iterator[str]:
    if recomputed:
        share = f"{len(recomputed)} of {len(blocks)} blocks"
        yield f"{named_blocks(recomputed, blocks)}: all their operators ({share})"
    whole = frozenset(recomputed)
    groups: dict[tuple[str, tuple[str, ...]], list[RegionPlan]] = {}
    for region in sorted(regions, key=lambda region: not region.kind):
        groups.setdefault((region.kind, region.recomputed_operators), []).append(region)
    for (kind, again), members in groups.items():
        rest = [block for region in members for block in region.blocks if block not in whole]
        if rest or (not kind and again):
            where = named_blocks(rest, blocks) if rest else "outside blocks"
            yield f"{where}: {_operators(again, members[0].operators)}"


def _operators(again: Sequence[str], operators: Iterable[str]) -> str:
    if not again:
        return "nothing"
    every = tuple(operators)
    names = list(_by_module(again, every))
    told = ", ".join(names[:_NAMES_TOLD])
    more = f" and {len(names) - _NAMES_TOLD} more" if len(names) > _NAMES_TOLD else ""
    return f"{told}{more} ({len(again)} of {len(every)} operators)"


def _by_module(again: Sequence[str], every: Sequence[str]) -> Iterator[str]:
    """Modules whose operators all run again, and how many of the others' do."""
    wanted = frozenset(again)
    partly: dict[str, list[str]] = {}
    for name in again:
        whole = next((m for m in _modules(name) if _calls(m, every) <= wanted), None)
        partly.setdefault(whole or name.rpartition("/")[0], []).append("" if whole else name)
    for module, names in partly.items():
        if not names[0]:
            yield module
        elif len(names) <= _CALLS_TOLD or not module:
            yield ", ".join(names)
        else:
            yield f"{module} ({len(names)} of {len(_calls(module, every))})"


def _modules(name: str) -> Iterator[str]:
    """The modules that a call is in, outermost first."""
    steps = name.rpartition("/")[0].split(".")
    return (".".join(steps[: end + 1]) for end in range(len(steps)) if steps[0])


def _calls(module: str, every: Iterable[str]) -> frozenset[str]:
    return frozenset(name for name in every if name.startswith((f"{module}/", f"{module}.")))
