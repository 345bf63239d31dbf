"""Times the passes of a step and the waits for messages, from outside the code that runs them.

Forwards are those of the stages' programs; backwards are calls of autograd by the schedule; waits
are those of the host's thread for messages that were started. All are the host's seconds, which are
the device's where the host computes itself.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from autoplan.runtime import torch_private

Seconds = Callable[[], float]


class PassClock:
    """Seconds since ``restart``, by what took them; passes include the waits within."""

    def __init__(self, read_s: Seconds = time.perf_counter) -> None:
        self._read_s = read_s
        self._depth: Counter[str] = Counter()
        self._started_s: dict[str, float] = {}
        self.restart()

    def restart(self) -> None:
        self._seconds: dict[str, float] = dict.fromkeys(("forward", "backward", "waiting"), 0.0)

    @property
    def forward_s(self) -> float:
        return self._seconds["forward"]

    @property
    def backward_s(self) -> float:
        return self._seconds["backward"]

    @property
    def waiting_s(self) -> float:
        return self._seconds["waiting"]

    @contextmanager
    def timing(self, programs: Iterable[nn.Module]) -> Iterator[None]:
        """Inside, passes and waits are timed."""
        with ExitStack() as stack:
            for program in programs:
                begins = program.register_forward_pre_hook(lambda *_: self._begin("forward"))
                ends = program.register_forward_hook(
                    lambda *_: self._end("forward"), always_call=True
                )
                stack.callback(begins.remove)
                stack.callback(ends.remove)
            for owner, name, what in (
                (torch.autograd, "backward", "backward"),
                (torch.autograd, "grad", "backward"),
                (dist.Work, "wait", "waiting"),
                (torch_private, "wait", "waiting"),
            ):
                call = getattr(owner, name)
                stack.callback(setattr, owner, name, call)
                setattr(owner, name, self._timed(call, what))
            yield

    def _timed(self, call: Callable[..., Any], what: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._begin(what)
            try:
                return call(*args, **kwargs)
            finally:
                self._end(what)

        return timed

    def _begin(self, what: str) -> None:
        """Starts the outermost of nested calls."""
        self._depth[what] += 1
        if self._depth[what] == 1:
            self._started_s[what] = self._read_s()

    def _end(self, what: str) -> None:
        self._depth[what] -= 1
        if not self._depth[what]:
            self._seconds[what] += self._read_s() - self._started_s[what]
