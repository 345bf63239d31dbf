"""Operators of users that draw at random and do not say so.

Torch's own operators say it in their tags, and what draws is then kept alike on all ranks, refused
on several, or given back its numbers when it runs again. Of an operator that does not say it every
rank of ``tp`` would draw numbers of its own, and a call that runs again others than before. A trial
on small random operands finds it (``samples``); what cannot run on the CPU is believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autoplan.trace.graph import OpNode
from autoplan.trace.refusals import RefusalError, Refuse
from autoplan.trace.samples import draws_at_random

_TAGGED = ("aten", "prims", "autoplan")


def refuse_untagged_draws(nodes: Sequence[OpNode], batch: int, refuse: Refuse) -> None:
    """Refuses calls that draw at random unsaid.

    Args:
        nodes: of a graph, written at ``batch``.
        refuse: told of each call.
    """
    custom = [
        node
        for node in nodes
        if node.kind == "call" and node.target.partition(".")[0] not in _TAGGED
    ]
    metas = {node.name: node.outputs for node in nodes if custom}
    for node in custom:
        if _says_so(node):
            continue
        operands = [metas[ref.node][ref.index] for ref in node.operands]
        if draws_at_random(node, operands, batch):
            what = f"{node.target} draws at random, which its tags do not say"
            cure = "define it with tags=torch.Tag.nondeterministic_seeded"
            refuse(RefusalError(what, node.where, cure, "randomness"))


def _says_so(node: OpNode) -> bool:
    operator: Any = torch.ops
    for part in node.target.split("."):
        operator = getattr(operator, part)
    return torch.Tag.nondeterministic_seeded in operator.tags
