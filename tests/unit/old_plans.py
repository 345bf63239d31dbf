"""Plan files as older releases wrote them."""

from __future__ import annotations

import json
from typing import Any

from autoplan import plan_io
from autoplan.plan import Plan

# By version: objects of the file that lack members which the present version has.
_LACKS_IN_5 = {"": ("flows", "outlook"), "estimate": ("modules",)}
_LACKS_IN_4 = {
    "": ("opaque", "flows", "outlook"),
    "job": ("batch_norm",),
    "estimate": ("comm_bytes", "comm_counts", "exposed_by_axis_s", "head_s", "timings", "modules"),
}
_LACKS_IN_3 = _LACKS_IN_4 | {"regions.*": ("reconverted_inputs",)}
_LACKS_IN_2 = _LACKS_IN_4 | {
    "": ("stages", "replicas", "opaque", "flows", "outlook"),
    "job": ("planned_only", "batch_norm"),
    "job.pins": ("schedule", "stages_per_rank", "replicas", "outermost"),
    "mesh": ("outermost",),
    "regions.*": ("recomputed_operators", "reconverted_inputs"),
    "estimate.stages.*": ("forward_s", "backward_s", "bubble_s", "held_microbatches"),
    "alternatives.*": ("schedule", "stages_per_rank", "replicas"),
    "alternatives.*.mesh": ("outermost",),
}
_LACKS_IN_1 = _LACKS_IN_2 | {
    "job": ("memory_limit_bytes", "placements", "planned_only", "batch_norm")
}
LACKS = {1: _LACKS_IN_1, 2: _LACKS_IN_2, 3: _LACKS_IN_3, 4: _LACKS_IN_4, 5: _LACKS_IN_5}


def as_version(plan: Plan, version: int, *, keeping: str = "") -> str:
    """The text of a plan in an older version, but for one member that came later."""
    document = json.loads(plan_io.to_json(plan))
    document["version"] = version
    for path, names in LACKS[version].items():
        for node, place in nodes_at(document, path):
            for name in names:
                if ".".join(filter(None, (place, name))) != keeping:
                    del node[name]
    return json.dumps(document)


def members_after(plan: Plan, version: int) -> list[str]:
    """Paths of the members of a plan's file that the version lacks."""
    document = json.loads(plan_io.to_json(plan))
    return [
        ".".join(filter(None, (place, name)))
        for path, names in LACKS[version].items()
        for _, place in nodes_at(document, path)
        for name in names
    ]


def nodes_at(document: Any, path: str) -> list[tuple[Any, str]]:
    """The objects that a path leads to, ``*`` being every element, and where each is."""
    found = [(document, "")]
    for step in filter(None, path.split(".")):
        found = [
            (child, f"{place}.{key}" if place else str(key))
            for node, place in found
            for key, child in (enumerate(node) if step == "*" else [(step, node[step])])
        ]
    return found
