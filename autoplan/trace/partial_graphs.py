"""Keeps torch.export from printing the graph so far where it fails.

The graph goes to stderr before the error is raised, once for each export that is tried, and hides
the one line that says what to do.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr


@contextmanager
def partial_graphs_unprinted() -> Iterator[None]:
    """Inside, what is written to stderr waits until the end; graphs of errors are left out."""
    said, graph = io.StringIO(), ""
    try:
        with redirect_stderr(said):
            yield
    except Exception as error:
        graph = str(getattr(error, "partial_fx_graph", ""))
        raise
    finally:
        text = said.getvalue()
        sys.stderr.write(text.replace(f"{graph}\n", "") if graph else text)
