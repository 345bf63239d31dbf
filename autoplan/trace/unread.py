"""Calls that the loss does not need, and that count all the same.

They are left out of the graph. A dropout among them draws on one device, so that those behind it
have later numbers; a BatchNorm updates its running statistics, as a program without it would not.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.trace.drafts import Draft
from autoplan.trace.refusals import RefusalError, Refuse

_DROPOUT, _BATCH_NORM = "aten.dropout.default", "autoplan.batch_norm.default"
_RUNNING_MEAN, _TRAINING = 3, 6


def unread_draws(drafts: Sequence[Draft], kept: Sequence[Draft]) -> tuple[str, ...]:
    """For every dropout that is left out, the name of the next one that stays; in order.

    Args:
        drafts: of the whole forward, in its order.
        kept: those of them that the loss needs.
    """
    needed = {draft.name for draft in kept}
    found: list[str] = []
    waiting = 0
    for draft in drafts:
        if draft.target != _DROPOUT:
            continue
        if draft.name in needed:
            found += [draft.name] * waiting
            waiting = 0
        else:
            waiting += 1
    return tuple(found)


def refuse_unread_norms(drafts: Sequence[Draft], kept: Sequence[Draft], refuse: Refuse) -> None:
    """Refuses a BatchNorm that updates running statistics and is left out.

    Args:
        drafts, kept: as for ``unread_draws``.
        refuse: told of its module and source line.
    """
    needed = {draft.name for draft in kept}
    for draft in drafts:
        if draft.target == _BATCH_NORM and draft.name not in needed and _updates(draft):
            what = (
                f"the loss does not need the result of BatchNorm {draft.module!r}, whose running "
                "statistics it would update"
            )
            cure = "take it out of the forward, or set it to eval"
            refuse(RefusalError(what, draft.where, cure, "BatchNorm"))


def _updates(draft: Draft) -> bool:
    return draft.args[_TRAINING] is True and draft.args[_RUNNING_MEAN] is not None
