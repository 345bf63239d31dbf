"""Tokens per sample: what is asked for, or what the model states."""

from __future__ import annotations

from autoplan.errors import PlanError

_LONGEST_DEFAULT = 8192


def sequence_length(
    seq_len: int | None, origin: str, *, longest: int | None, stated: int | None
) -> int:
    """Tokens per sample.

    Args:
        seq_len: as asked for; None for ``stated``, at most 8192.
        origin: what the model came from, for messages.
        longest: what the model can take; None where there is no limit.

    Raises:
        PlanError: a length that the model cannot take, or none at all.
    """
    if seq_len is None:
        if stated is None:
            raise PlanError(
                f"{origin}: the config states no maximum length; give a sequence length"
            )
        return min(stated, _LONGEST_DEFAULT)
    if seq_len < 2:
        raise PlanError(f"{origin}: a sequence length of {seq_len} trains nothing; give 2 or more")
    if longest is not None and seq_len > longest:
        raise PlanError(
            f"{origin}: a sequence length of {seq_len} exceeds the model's maximum of {longest}; "
            f"give {longest} or less"
        )
    return seq_len
