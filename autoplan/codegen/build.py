"""Runs emitted source and builds the module tree around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from autoplan.codegen.emitted import Emitted


def build_module(
    emitted: Emitted,
    parameter: Callable[[str], nn.Parameter],
    buffer: Callable[[str], Tensor],
    axes: Mapping[str, Any],
) -> nn.Module:
    """The sharded module of this rank.

    Parameters and buffers sit at their original names (the first of a tied group), block
    instances at their original paths.

    Args:
        parameter: makes the parameter of an original name: a DTensor on ``tp``, or this rank's
            local tensor.
        buffer: makes the buffer of an original name, likewise.
        axes: this rank's ``runtime.collectives.AxisGroup`` of each axis; ``tp`` is read.
    """
    raise NotImplementedError
