"""User source lines: of a traced node, and of an exception.

The innermost frame outside torch, transformers and autoplan is the user's; failing that the
innermost one outside torch and autoplan.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autoplan.trace.torch_private import current_tracer, stack_traces

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH = str(Path(torch.__file__).parent)
_AUTOPLAN = str(Path(__file__).parents[1])
_SITE_PACKAGES = re.compile(r".*[\\/]site-packages[\\/]")


@contextmanager
def lines_recorded(program: nn.Module) -> Iterator[None]:
    """While ``program`` is exported, its calls record no more of their stacks than is read here."""
    forward = program.forward

    @wraps(forward)
    def recording(*args: Any, **kwargs: Any) -> Any:
        with stack_traces(current_tracer(), _stack_of_forwards):
            return forward(*args, **kwargs)

    program.forward = recording
    try:
        yield
    finally:
        program.forward = forward


def _stack_of_forwards() -> str:
    """The frames outside torch and autoplan, from the outermost forward of a module inwards, as
    the text of a stack trace."""
    lines: list[str] = []
    inside = 0
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((_TORCH, _AUTOPLAN)):
            lines.append(f'File "{code.co_filename}", line {frame.f_lineno}')
            inside = len(lines) if code.co_name == "forward" else inside
        frame = frame.f_back
    return "\n".join(reversed(lines[:inside]))


def line_of_stack(stack_trace: str) -> str:
    """``file:line`` from the text of a stack trace, outermost frame first; '' when empty."""
    return _user_line([(name, int(line)) for name, line in _FRAME.findall(stack_trace)])


def line_here() -> str:
    """``file:line`` of the user's code that runs now, '' when there is none."""
    frames: list[tuple[str, int]] = []
    frame = sys._getframe(1)
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return _user_line(frames[::-1])


def line_of_error(error: BaseException) -> str:
    """``file:line`` of the user's code that an exception passed through, '' when unknown."""
    frames = traceback.extract_tb(error.__traceback__)
    return _user_line([(frame.filename, frame.lineno or 0) for frame in frames])


def _user_line(frames: Sequence[tuple[str, int]]) -> str:
    own = [f for f in frames if not f[0].startswith((_TORCH, _AUTOPLAN, "<"))]
    user = [f for f in own if f"{os.sep}transformers{os.sep}" not in f[0]]
    for candidates in (user, own):
        if candidates:
            name, line = candidates[-1]
            return f"{_short(name)}:{line}"
    return ""


def _short(filename: str) -> str:
    shortened = _SITE_PACKAGES.sub("", filename)
    if shortened == filename and os.path.isabs(filename):
        relative = os.path.relpath(filename)
        return filename if relative.startswith("..") else relative
    return shortened
