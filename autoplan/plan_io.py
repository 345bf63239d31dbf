"""Plan files: strict, readable JSON that is the same bytes for the same plan.

Fields keep the order of their dataclass, mappings are sorted, and numbers are written in the type
of their field. A file is refused whole, with the path of the first wrong field, when it holds
anything that the types do not foresee; whatever is written here can be read here.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ConfigDict, TypeAdapter, ValidationError

from autoplan.errors import PlanError
from autoplan.plan import PLAN_VERSION, Plan
from autoplan.plan_checks import check_plan
from autoplan.plan_versions import check_version
from hardware_profiles.validation import first_fault, one_line

_LARGEST_FILE_BYTES = 16 * 1024 * 1024
_DEEPEST = 32
_LARGEST_INTEGER = 1 << 63
_TOO_DEEP = f"plan file is nested deeper than {_DEEPEST} levels"

# Dataclasses take the configuration of what holds them, here a tuple of one plan.
_ADAPTER = TypeAdapter(
    tuple[Plan], config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
)


def to_json(plan: Plan) -> str:
    """The text of a plan file; equal plans give equal texts.

    Raises:
        PlanError: the plan holds something that a plan file cannot.
    """
    try:
        text = json.dumps(_plain(plan), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise PlanError(f"plan cannot be written: {one_line(str(error))}") from None
    return json.dumps(_plain(from_json(text)), indent=2) + "\n"


def from_json(text: str) -> Plan:
    """The plan of a plan file's text; that of an older file as this version would write it.

    Raises:
        PlanError: not a plan file of this version or an older one, or inconsistent in itself.
    """
    if len(text.encode(errors="surrogatepass")) > _LARGEST_FILE_BYTES:
        raise PlanError(f"plan file is larger than {_LARGEST_FILE_BYTES} bytes")
    _check_document(_parse(text))
    try:
        (plan,) = _ADAPTER.validate_json(f"[{text}]")
    except ValidationError as error:
        # The leading "0." of every path is the plan's place in the tuple.
        raise PlanError(f"plan file: {first_fault(error).removeprefix('0.')}") from None
    check_plan(plan)
    return replace(plan, version=PLAN_VERSION)


def save(plan: Plan, path: str | Path) -> None:
    """Writes a plan file, whole or not at all: a reader sees the old file or the new one.

    Raises:
        PlanError: the file cannot be written.
    """
    content = to_json(plan).encode()
    target = Path(path)
    try:
        _replace(target, content)
    except (OSError, ValueError) as error:
        raise PlanError(_file_fault("write", target, error)) from None


def load(path: str | Path) -> Plan:
    """The plan of a plan file.

    Raises:
        PlanError: the file cannot be read, or is not a plan file (see ``from_json``).
    """
    source = Path(path)
    try:
        with source.open("rb") as file:
            content = file.read(_LARGEST_FILE_BYTES + 1)
        text = content.decode()
    except (OSError, ValueError) as error:
        raise PlanError(_file_fault("read", source, error)) from None
    try:
        return from_json(text)
    except PlanError as error:
        raise PlanError(f"{source}: {error}") from None


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(value[key]) for key in sorted(value)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _parse(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except RecursionError:
        raise PlanError(_TOO_DEEP) from None
    except ValueError as error:
        raise PlanError(f"plan file is not JSON: {one_line(str(error))}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"member {twice!r} stands twice in one object")
    return members


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")


def _check_document(document: Any) -> None:
    if not isinstance(document, dict):
        raise PlanError("plan file: an object is expected")
    _check_size(document)
    check_version(document)


def _check_size(document: Any) -> None:
    level, depth = [document], 0
    while level:
        depth += 1
        if depth > _DEEPEST:
            raise PlanError(_TOO_DEEP)
        if any(isinstance(node, int) and abs(node) >= _LARGEST_INTEGER for node in level):
            raise PlanError("plan file: an integer does not fit 64 bits")
        level = [child for node in level for child in _children(node)]


def _children(node: Any) -> Iterable[Any]:
    if isinstance(node, dict):
        return node.values()
    return node if isinstance(node, list) else ()


def _replace(target: Path, content: bytes) -> None:
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _file_fault(verb: str, path: Path, error: Exception) -> str:
    reason = getattr(error, "strerror", None) or str(error)
    return f"cannot {verb} plan file {one_line(str(path))}: {one_line(reason)}"
