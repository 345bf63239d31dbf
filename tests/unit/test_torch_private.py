"""A torch release that drops a private name must say which."""

import pytest

from autoplan.codegen import torch_private as codegen
from autoplan.runtime import torch_private as runtime
from autoplan.runtime.torch_private import resolve
from autoplan.trace import torch_private as trace


@pytest.mark.parametrize(
    "name", sorted({*trace.PRIVATE_NAMES, *codegen.PRIVATE_NAMES, *runtime.PRIVATE_NAMES})
)
def test_torch_still_has(name):
    assert resolve(name) is not None


def test_a_name_that_vanished_is_named():
    with pytest.raises(AttributeError, match=r"torch\.ops\._c10d_functional\.gone"):
        resolve("torch.ops._c10d_functional.gone")
