"""Writes profiles: every figure with its provenance and source, in the form that ``load`` reads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hardware_profiles.load import parse_facts
from hardware_profiles.schema import Fact, ProfileFacts

_PARTS = ("machine", "device", "intra_node", "inter_node")


def to_toml(profile: ProfileFacts) -> str:
    """The text of a profile's file, which reads back as the same facts.

    Raises:
        ProfileFault: the facts break a rule of ``schema`` or do not fit their digest.
    """
    top, *parts = (
        list(_lines({name: value for name, value in profile if name not in _PARTS})),
        *(
            [f"\n[{part}]", *_lines(dict(found))]
            for part in _PARTS
            if (found := getattr(profile, part)) is not None
        ),
    )
    text = "\n".join((*top, *(line for part in parts for line in part))) + "\n"
    parse_facts(text, where=profile.name)
    return text


def save(profile: ProfileFacts, path: Path) -> None:
    """Writes the file whole or not at all.

    Raises:
        OSError: it cannot be written.
        ProfileFault: as ``to_toml``.
    """
    text = to_toml(profile)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _lines(members: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in members.items():
        if isinstance(value, Fact):
            fields = ", ".join(f"{key} = {_literal(part)}" for key, part in value)
            yield f"{prefix}{name} = {{ {fields} }}"
        elif isinstance(value, str | int):
            yield f"{prefix}{name} = {_literal(value)}"
        elif value is not None:
            yield from _lines(dict(value), f"{prefix}{name}.")


def _literal(value: str | float) -> str:
    """A TOML value; JSON's escapes of text and Python's numbers are among TOML's."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
