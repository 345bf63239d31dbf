"""One printable line out of pydantic's report on bad input, for errors that users read."""

from __future__ import annotations

from pydantic import ValidationError

_LONGEST = 200
_UNKNOWN_FIELD = ("extra_forbidden", "unexpected_keyword_argument")


def one_line(text: str) -> str:
    """The text without line breaks and unprintable characters, cut to a readable length."""
    printable = "".join(char if char.isprintable() else " " for char in text)
    return printable if len(printable) <= _LONGEST else printable[:_LONGEST] + "..."


def first_fault(error: ValidationError) -> str:
    """``field.path: what is wrong`` for the first fault, and how many more there are."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    path = ".".join(str(step) for step in faults[0]["loc"]) or "the whole"
    message = "unknown field" if faults[0]["type"] in _UNKNOWN_FIELD else faults[0]["msg"]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return one_line(f"{path}: {message}") + more
