"""Progress on stderr: a bar on a terminal, a few lines in a pipe, nothing for quick work."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

QUIET_S = 2.0


class ProgressDisplay:
    """A callback ``(fraction done, what is being done)`` that shows itself after ``quiet_s``.

    Used as a context manager; leaving it clears the bar.
    """

    def __init__(self, quiet_s: float = QUIET_S) -> None:
        self._lock = threading.Lock()
        self._timer = threading.Timer(quiet_s, self._reveal)
        self._timer.daemon = True
        self._visible = False
        self._fraction, self._what = 0.0, ""
        self._line: _Bar | _Lines = _Bar() if sys.stderr.isatty() else _Lines()

    def __enter__(self) -> ProgressDisplay:
        self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._visible = False
            self._line.close()

    def __call__(self, fraction: float, what: str) -> None:
        with self._lock:
            self._fraction, self._what = fraction, what
            if self._visible:
                self._line.show(fraction, what)

    def _reveal(self) -> None:
        with self._lock:
            if not self._timer.finished.is_set():
                self._visible = True
                if self._what:
                    self._line.show(self._fraction, self._what)


@contextmanager
def logs_held() -> Iterator[None]:
    """Holds back logs up to errors: PyTorch logs the traceback of what we report in one line."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.ERROR))
    try:
        yield
    finally:
        logging.disable(before)


class _Lines:
    """A line for every tenth of the work."""

    def __init__(self) -> None:
        self._shown = -1

    def show(self, fraction: float, what: str) -> None:
        tenth = int(10 * fraction)
        if tenth > self._shown:
            self._shown = tenth
            print(f"{100 * fraction:.0f} % {what}", file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class _Bar:
    """A bar that vanishes when closed."""

    def __init__(self) -> None:
        self._progress = None

    def show(self, fraction: float, what: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        if self._progress is None:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._progress.add_task(what, total=1.0)
            self._progress.start()
        self._progress.update(self._progress.task_ids[0], completed=fraction, description=what)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
