"""A torch release that drops a private name must say which."""

import pytest

from autoplan.runtime.torch_private import PRIVATE_NAMES, resolve


@pytest.mark.parametrize("name", PRIVATE_NAMES)
def test_torch_still_has(name):
    assert callable(resolve(name))


def test_a_name_that_vanished_is_named():
    with pytest.raises(AttributeError, match=r"torch\.ops\._c10d_functional\.gone"):
        resolve("torch.ops._c10d_functional.gone")
