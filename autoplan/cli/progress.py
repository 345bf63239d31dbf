"""Progress on stderr: a bar on a terminal, a line at a time in a pipe, nothing for quick work."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

QUIET_S = 2.0


class ProgressDisplay:
    """A callback ``(fraction done, what is being done)`` that shows itself after two seconds.

    Used as a context manager; leaving it clears the bar.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._start_s = time.monotonic()
        self._bar: Progress | None = None
        self._shown = ""

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, fraction: float, what: str) -> None:
        if time.monotonic() - self._start_s < QUIET_S:
            return
        if self._console.is_terminal:
            self._draw(fraction, what)
        elif what != self._shown:
            self._shown = what
            print(f"{100 * fraction:.0f} % {what}", file=self._console.file, flush=True)

    def _draw(self, fraction: float, what: str) -> None:
        if self._bar is None:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.add_task(what, total=1.0)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=fraction, description=what)
