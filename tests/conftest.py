"""For all tests: no profile that was measured on this machine is found, and processes can fork."""

import os
import tempfile
from pathlib import Path

import torch

os.environ["XDG_CACHE_HOME"] = str(Path(tempfile.gettempdir(), "autoplan-tests-have-no-cache"))

if not torch.cuda.is_available():
    # The first backward starts a thread for every GPU, after which no process can be forked.
    # Builds of torch with CUDA would take it, once something was traced, that there are GPUs.
    torch.ones((), requires_grad=True).backward()
