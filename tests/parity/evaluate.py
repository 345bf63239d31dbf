"""Outputs without a loss on simulated ranks: ``tp`` ranks are threads, the rest goes in turn."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from autoplan.codegen.build import bind_methods
from autoplan.codegen.emitted import Emitted
from autoplan.runtime.collectives import AxisGroup
from tests.parity.simulate import build_sharded
from tests.parity.threads import on_ranks


def evaluated(
    trained: Emitted, emitted: Emitted, model: nn.Module, inputs: Mapping[str, Tensor]
) -> list[Tensor]:
    """The outputs for whole microbatches, which all ranks of ``tp`` agree on.

    Args:
        trained: the program with the loss, on whose modules ``emitted`` runs.
    """
    ranks = on_ranks(emitted.tp, lambda axis: _rank(trained, emitted, model, inputs, axis))
    for other in ranks[1:]:
        torch.testing.assert_close(other, ranks[0], rtol=0, atol=0)
    return ranks[0]


@torch.no_grad()
def _rank(
    trained: Emitted,
    emitted: Emitted,
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    axis: AxisGroup,
) -> list[Tensor]:
    roots = [build_sharded(trained, model, axis, stage) for stage in trained.stages]
    methods = {}
    for root, stage in zip(roots, emitted.stages, strict=True):
        methods |= bind_methods(emitted, stage, root, {"tp": axis})
    for module, method in methods.items():
        module.evaluate = method  # pyright: ignore[reportArgumentType]
    pieces = emitted.dp * emitted.num_microbatches
    columns = [
        inputs[entry.target].chunk(pieces, entry.meta.batch_dims[0]) for entry in emitted.inputs
    ]
    parts = [_piece(emitted, roots, values) for values in zip(*columns, strict=True)]
    for part in parts:
        for tensor, output in zip(part, emitted.outputs, strict=True):
            assert tuple(tensor.shape) == output.shape
            assert str(tensor.dtype) == f"torch.{output.dtype}"
    return [
        column[0] if output.batch_dim is None else torch.cat(column, output.batch_dim)
        for column, output in zip(zip(*parts, strict=True), emitted.outputs, strict=True)
    ]


def _piece(
    emitted: Emitted, roots: list[nn.Module], values: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    received: tuple[Tensor, ...] = ()
    for root, stage in zip(roots, emitted.stages, strict=True):
        shapes = [tuple(tensor.shape) for tensor in received]
        assert shapes == [boundary.shape for boundary in stage.receives]
        own = (values[index] for index in stage.inputs)
        draws = {"draws": None} if stage.takes_draws else {}
        found = root.evaluate(*received, *own, **draws)  # pyright: ignore[reportCallIssue]
        received = found if isinstance(found, tuple) else (found,)
    return received
