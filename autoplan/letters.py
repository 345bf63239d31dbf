"""What one process tells others: JSON values that it found, or its refusal, to be raised there."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from autoplan import errors
from autoplan.errors import AutoplanError


def letter_of(find: Callable[[], Any]) -> str:
    """The letter of what ``find`` returns, made of JSON values, or of the error it raises."""
    try:
        return json.dumps({"found": find()})
    except AutoplanError as error:
        return refusal(error)


def refusal(error: AutoplanError) -> str:
    """The letter of an error."""
    return json.dumps({"refused": type(error).__name__, "message": str(error)})


def opened(letter: str | bytes) -> Any:
    """What was found.

    Raises:
        AutoplanError: what is refused, as it was raised.
    """
    told = json.loads(letter)
    if "refused" in told:
        raise getattr(errors, told["refused"])(told["message"])
    return told["found"]
