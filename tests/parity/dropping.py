"""Models with dropout wherever they can have it."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from autoplan.trace.capture import capture
from tests.parity.cases import BATCH, Case
from tests.parity.models import initialise, language_batch


class DroppingMLP(nn.Module):
    """Dropout of the input, inside and outside of blocks, and of a tensor without the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.2)) for _ in range(4)
        )
        self.scale = nn.Parameter(torch.zeros(16))
        self.out = nn.Linear(16, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = F.dropout(x, 0.1, self.training) * F.dropout(self.scale, 0.3, self.training)
        for layer in self.layers:
            x = layer(x)
        return F.mse_loss(F.dropout(self.out(x), 0.5, self.training), y)


def dropping_gpt2() -> nn.Module:
    config = GPT2Config(
        vocab_size=32, n_positions=8, n_embd=16, n_layer=2, n_head=8,
        resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def dropping_bert() -> nn.Module:
    config = BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=8,
        intermediate_size=32, max_position_embeddings=8,
        hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
    )  # fmt: skip
    return BertForMaskedLM(config)


MODELS = {"mlp": DroppingMLP, "gpt2": dropping_gpt2, "bert": dropping_bert}


def batch_of(name: str, rows: int) -> dict[str, Tensor]:
    if name == "mlp":
        float64 = torch.float64
        return {
            "x": torch.randn(rows, 16, dtype=float64), "y": torch.randn(rows, 8, dtype=float64)
        }  # fmt: skip
    batch = language_batch(rows)
    batch["input_ids"] = batch.pop("ids")
    return batch


def model_of(name: str) -> nn.Module:
    return initialise(MODELS[name](), torch.float64).train()


@cache
def dropping(name: str) -> Case:
    """The model of this name, its batch and its graph."""
    torch.manual_seed(0)
    model, batch = model_of(name), batch_of(name, BATCH)
    return Case(model, batch, capture(model, batch).at_batch(BATCH))
