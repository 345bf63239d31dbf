"""Runs a command and turns what goes wrong into one line on stderr and an exit code."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence

import typer

from autoplan.cli.commands import app
from autoplan.cli.completion import PROGRAM, answer_shells
from autoplan.errors import AutoplanError, InfeasibleError

ERROR = 1
DOES_NOT_FIT = 2

# A graph is millions of small objects that all live to the end: looking through them for garbage,
# again and again and once more when Python exits, takes a fifth of the time to plan.
_GARBAGE_THRESHOLDS = (10_000_000, 50, 100)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs ``autoplan`` with the given arguments.

    By default they are those of the process, which is then taken to run nothing else.

    Returns:
        The exit code; typer makes it 130 for Ctrl-C.
    """
    if arguments is None:
        spare_collection()
    try:
        answer_shells()
        given = list(sys.argv[1:] if arguments is None else arguments)
        return app(given or ["--help"], prog_name=PROGRAM, standalone_mode=False) or 0
    except InfeasibleError as error:
        return _fail(error, DOES_NOT_FIT)
    except AutoplanError as error:
        return _fail(error, ERROR)
    except typer.TyperException as error:
        return _fail(error.format_message(), ERROR)
    except BrokenPipeError:
        # The reader of stdout has gone; the interpreter must not meet the pipe again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ERROR
    except OSError as error:
        return _fail(f"{error.filename or 'file system'}: {error.strerror}", ERROR)


def spare_collection() -> None:
    """Has the process, which plans and ends, look for garbage hardly ever."""
    gc.set_threshold(*_GARBAGE_THRESHOLDS)
    atexit.register(gc.freeze)


def _fail(message: object, code: int) -> int:
    print("error:", " ".join(str(message).split()), file=sys.stderr)
    return code
