"""For all tests: no profile that was measured on this machine is found."""

import os
import tempfile
from pathlib import Path

os.environ["XDG_CACHE_HOME"] = str(Path(tempfile.gettempdir(), "autoplan-tests-have-no-cache"))
