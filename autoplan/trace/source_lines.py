"""User source lines: of a traced node, and of an exception.

The innermost frame outside torch, transformers and autoplan is the user's; failing that the
innermost one outside torch and autoplan.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH = str(Path(torch.__file__).parent)
_AUTOPLAN = str(Path(__file__).parents[1])
_SITE_PACKAGES = re.compile(r".*[\\/]site-packages[\\/]")


def line_of_stack(stack_trace: str) -> str:
    """``file:line`` from the text of a stack trace, outermost frame first; '' when empty."""
    return _user_line([(name, int(line)) for name, line in _FRAME.findall(stack_trace)])


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
