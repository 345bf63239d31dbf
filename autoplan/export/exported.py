"""What an export makes: files, and what the plan says that they do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """A configuration of a framework.

    Attributes:
        framework: its name and the release whose syntax this is.
        files: contents by file name.
        left_out: what the plan decides and these files cannot express or leave to the user.
    """

    framework: str
    files: Mapping[str, str]
    left_out: tuple[str, ...]


def heading(what: str, mark: str = "#") -> str:
    """The first lines of a file, as comments."""
    return f"{mark} {what}\n{mark} Made from a plan; autoplan export tells what it leaves out.\n"


def gathered_weights(zero: int) -> str:
    """Where FSDP2 stands for a lower ZeRO stage."""
    return f"ZeRO {zero}: weights are sharded too and gathered once a step, as FSDP2 does"
