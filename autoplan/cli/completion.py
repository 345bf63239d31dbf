"""``autoplan completion``: what a shell needs to complete commands, options, models and clusters.

The shell asks the command itself, by an environment variable that typer reads. Typer's own options
for it write to the user's files and guess the shell; here it is printed.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

PROGRAM = "autoplan"
_VARIABLE = f"_{PROGRAM.upper()}_COMPLETE"


class Shell(StrEnum):
    """Shells that are known."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell that completes.")],
) -> None:
    """Print what makes a shell complete commands.

    Put 'eval "$(autoplan completion bash)"' in ~/.bashrc.
    """
    from typer.completion import get_completion_script  # pyright: ignore[reportPrivateImportUsage]

    script = get_completion_script(prog_name=PROGRAM, complete_var=_VARIABLE, shell=shell.value)
    print(script)


def answer_shells() -> None:
    """Has typer answer, when it is a shell that asks."""
    if _VARIABLE in os.environ:
        from typer.completion import completion_init  # pyright: ignore[reportPrivateImportUsage]

        completion_init()
