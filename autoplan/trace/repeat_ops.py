"""Two operators that stand for repeated blocks in an exported graph; they are never run.

``autoplan::block`` stands for the whole block at a path, which equals the earlier one of its key.
``autoplan::mark`` brackets the calls of a block that was traced: ``enter:key`` with what it reads,
``exit:key`` with what it returns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch

from autoplan.trace.torch_private import has_side_effect

_LIBRARY = torch.library.Library("autoplan", "FRAGMENT")
# Of operators whose operands may not change their strides, export notes these down.
_TAGS = (torch.Tag.flexible_layout,)
_LIBRARY.define(
    "block(str key, str path, Tensor[] ins, Tensor[] stored, str outputs) -> Tensor[]", tags=_TAGS
)
_LIBRARY.define("mark(str tag, Tensor[] first, Tensor[] second) -> ()", tags=_TAGS)


@torch.library.register_fake("autoplan::block", lib=_LIBRARY)
def _block_outputs(key, path, ins, stored, outputs):
    return [
        torch.empty_strided(shape, stride, dtype=getattr(torch, dtype))
        for shape, stride, dtype in json.loads(outputs)
    ]


@torch.library.register_fake("autoplan::mark", lib=_LIBRARY)
def _no_outputs(tag, first, second):
    return None


def _no_backward(ctx, *gradients):
    raise RuntimeError("autoplan::block stands for other operators and is never run")


torch.library.register_autograd("autoplan::block", _no_backward, lib=_LIBRARY)

BLOCK = torch.ops.autoplan.block.default
MARK = torch.ops.autoplan.mark.default
has_side_effect(MARK)


def describe(tensors: Sequence[torch.Tensor]) -> str:
    """The ``outputs`` argument of ``autoplan::block``: shapes, strides and dtypes."""
    return json.dumps(
        [[list(t.shape), list(t.stride()), str(t.dtype).removeprefix("torch.")] for t in tensors]
    )
