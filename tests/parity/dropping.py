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


class DroppingLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads, self.drop = heads, nn.Dropout(0.1)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm_1(x)
        query, key, value = (
            part(y).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        rate = self.drop.p if self.training else 0.0
        y = F.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=True)
        x = x + self.drop(self.o(y.transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm_2(x)))))


class DroppingGPT(nn.Module):
    """A causal language model whose loss is computed in its own precision."""

    def __init__(self, layers: int = 2, width: int = 16, vocab: int = 32) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(8, width)
        self.layers = nn.ModuleList(DroppingLayer(width, 8) for _ in range(layers))
        self.drop, self.norm = nn.Dropout(0.1), nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.drop(self.tokens(ids) + self.positions(positions))
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


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


MODELS = {"mlp": DroppingMLP, "gpt": DroppingGPT, "gpt2": dropping_gpt2, "bert": dropping_bert}


def batch_of(name: str, rows: int) -> dict[str, Tensor]:
    if name == "mlp":
        float64 = torch.float64
        return {
            "x": torch.randn(rows, 16, dtype=float64), "y": torch.randn(rows, 8, dtype=float64)
        }  # fmt: skip
    batch = language_batch(rows)
    if name != "gpt":
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
