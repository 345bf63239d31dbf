"""Operations and kept bytes of recurrent layers, against cells run step by step."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from autoplan.trace.capture import capture

SAMPLES, STEPS, INPUTS, WIDTH = 2, 5, 6, 8


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]):
        super().__init__()
        self.layer = kind(INPUTS, WIDTH, batch_first=True)

    def forward(self, x):
        """x: (batch, steps, inputs)."""
        return self.layer(x)[0].sum()


CASES = [(nn.LSTM, nn.LSTMCell, 4), (nn.GRU, nn.GRUCell, 3), (nn.RNN, nn.RNNCell, 1)]


@pytest.mark.parametrize(("kind", "cell", "gates"), CASES)
def test_operations_and_kept_bytes(kind, cell, gates):
    x = torch.randn(SAMPLES, STEPS, INPUTS)
    graph = capture(Recurrent(kind), (x,))
    (call,) = [node for node in graph.of_kind("call") if node.flops]
    stepped = cell(INPUTS, WIDTH)
    with FlopCounterMode(display=False) as counter:
        state = None
        for step in range(STEPS):
            state = stepped(x[:, step], state)
    assert call.flops == counter.get_total_flops()
    assert call.backward_flops == 2 * call.flops
    kept = [saved.nbytes for saved in call.saved if saved.source is None]
    assert 4 * SAMPLES * STEPS * (gates + 1) * WIDTH in kept
