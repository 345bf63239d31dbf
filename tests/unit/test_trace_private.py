"""A torch release that drops a private name which tracing uses must say which."""

import pytest

from autoplan.runtime.torch_private import resolve
from autoplan.trace.torch_private import PRIVATE_NAMES


@pytest.mark.parametrize("name", PRIVATE_NAMES)
def test_torch_still_has(name):
    assert callable(resolve(name))
