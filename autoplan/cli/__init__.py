"""The ``autoplan`` command. Reports and JSON go to stdout, everything else to stderr.

Exit codes: 0 the plan fits, 1 an error (one line on stderr), 2 nothing fits the memory, 130 on
Ctrl-C.
"""

from autoplan.cli.main import main

__all__ = ["main"]
