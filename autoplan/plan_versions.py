"""Versions of plan files: which members each of them added.

Older files are read: what they lack takes its default, which is what it was before the member
existed. A member that is newer than the version of its file is unknown there and refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from autoplan.errors import PlanError
from autoplan.plan import PLAN_VERSION
from hardware_profiles.validation import one_line

# Paths of members by the version that brought them; "*" is any element of an array.
_NEW_MEMBERS = {
    1: (),
    2: ("job.memory_limit_bytes", "job.placements"),
    3: (
        "job.planned_only",
        *(f"job.pins.{pin}" for pin in ("schedule", "stages_per_rank", "replicas", "outermost")),
        "mesh.outermost",
        "stages",
        "replicas",
        "regions.*.recomputed_operators",
        *(
            f"estimate.stages.*.{member}"
            for member in ("forward_s", "backward_s", "bubble_s", "held_microbatches")
        ),
        "alternatives.*.mesh.outermost",
        *(f"alternatives.*.{member}" for member in ("schedule", "stages_per_rank", "replicas")),
    ),
    4: ("regions.*.reconverted_inputs",),
    5: (
        *(
            f"estimate.{member}"
            for member in ("comm_bytes", "comm_counts", "exposed_by_axis_s", "head_s", "timings")
        ),
        "opaque",
        "job.batch_norm",
    ),
    6: ("estimate.modules", "flows", "outlook"),
}


def check_version(document: dict[str, Any]) -> None:
    """Refuses a document of an unknown version, or with members that its version lacks.

    Raises:
        PlanError: naming the version or the member.
    """
    version = document.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version not in _NEW_MEMBERS:
        raise PlanError(
            f"plan file: version {one_line(repr(version))} is not {PLAN_VERSION}, the version that "
            "this release writes, nor an older one; plan again"
        )
    for newer in range(version + 1, PLAN_VERSION + 1):
        for member in _NEW_MEMBERS[newer]:
            found = next(_places(document, member.split(".")), None)
            if found is not None:
                raise PlanError(f"plan file: {found}: unknown field in a file of version {version}")


def _places(node: Any, path: list[str], above: str = "") -> Iterator[str]:
    """Where the path leads to in a document, if anywhere."""
    if not path:
        yield above
        return
    step, *rest = path
    for key, child in _children(node, step):
        yield from _places(child, rest, f"{above}.{key}" if above else str(key))


def _children(node: Any, step: str) -> Iterable[tuple[str | int, Any]]:
    if step == "*":
        return enumerate(node) if isinstance(node, list) else ()
    return ((step, node[step]),) if isinstance(node, dict) and step in node else ()
