"""The errors a user can meet, and how those of others are quoted in them.

Every message is one line that says what is wrong, where, and what to do about it. All of them are
``ValueError``s, so that a caller who knows nothing of autoplan still catches bad input as such.
"""


class AutoplanError(ValueError):
    """Base of all errors that autoplan raises on bad input; shown to users as one line."""


class UnsupportedModelError(AutoplanError):
    """The model cannot be traced, sharded or run correctly."""


class InfeasibleError(AutoplanError):
    """No plan fits the memory; says what overflows and the nearest change that fits."""


class PlanError(AutoplanError):
    """A plan, a pin or a job that cannot hold: bad file, wrong model, impossible degree."""


class ProfileError(AutoplanError):
    """A hardware profile that is unknown or malformed."""


class CheckpointError(AutoplanError):
    """A checkpoint that is missing, damaged or of another model."""


def first_line(error: BaseException, longest: int = 160) -> str:
    """What another error says, to be quoted: its first line, or its class where it says nothing."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:longest]
