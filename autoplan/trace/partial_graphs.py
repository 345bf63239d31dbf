"""Keeps torch.export from printing the graph so far, and where it was in torch, where it fails.

Both go to stderr before the error is raised, once for each export that is tried, and hide the one
line that says what to do.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

from autoplan.trace.torch_private import LOGGERS


@contextmanager
def partial_graphs_unprinted() -> Iterator[None]:
    """Inside, what is written to stderr waits until the end; graphs of errors are left out."""
    said, graph = io.StringIO(), ""
    loggers = [logger for logger in map(logging.getLogger, LOGGERS) if not logger.disabled]
    for logger in loggers:
        logger.disabled = True
    try:
        with redirect_stderr(said):
            yield
    except Exception as error:
        graph = str(getattr(error, "partial_fx_graph", ""))
        raise
    finally:
        for logger in loggers:
            logger.disabled = False
        text = said.getvalue()
        sys.stderr.write(text.replace(f"{graph}\n", "") if graph else text)
