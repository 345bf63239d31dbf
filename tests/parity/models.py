"""Small models whose dims divide by 8."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

        y = F.scaled_dot_product_attention(
            split(self.q(x)), split(self.k(x)), split(self.v(x)), is_causal=True
        )
        return self.o(y.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    """A causal language model that returns its loss; ``tied`` shares the table with the head."""

    def __init__(
        self,
        *,
        tied: bool = False,
        layers: int = 2,
        width: int = 16,
        heads: int = 8,
        vocab: int = 32,
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(8, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class MLP(nn.Module):
    """A regression with a mean squared error."""

    def __init__(self, layers: int = 3, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
        self.out = nn.Linear(width, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.out(torch.relu(self.layers(x))), y)


def language_batch(batch: int, length: int = 8, vocab: int = 32) -> dict[str, Tensor]:
    """Token ids and labels, about a third of the labels ignored."""
    ids, labels = (torch.randint(vocab, (batch, length)) for _ in range(2))
    return {"ids": ids, "labels": torch.where(torch.rand(batch, length) < 0.3, -100, labels)}


def initialise(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Weights large enough that every gradient counts, biases and norms included."""
    generator = torch.Generator().manual_seed(0)
    model.to(dtype)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3
        parameter.data.copy_(noise + (1.0 if parameter.dim() == 1 else 0.0))
    return model


def gpt2() -> nn.Module:
    """A transformers GPT-2 without dropout."""
    config = GPT2Config(
        vocab_size=32, n_positions=8, n_embd=16, n_layer=2, n_head=8,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def llama() -> nn.Module:
    """A transformers Llama with two query heads per key head."""
    config = LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=16, num_key_value_heads=8, max_position_embeddings=8,
    )  # fmt: skip
    return LlamaForCausalLM(config)
