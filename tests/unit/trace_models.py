"""Small models for the tracing tests, and an interpreter of graphs on real tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from autoplan.trace.graph import BatchInt, OpGraph, Ref, TorchValue


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    """A decoder with tied embeddings that returns logits."""

    def __init__(self, *, vocab=61, width=16, heads=2, layers=2, length=12, dropout=0.0, tied=True):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(length, width)
        self.layers = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class MLP(nn.Module):
    """Linear layers with ReLU that returns its predictions."""

    def __init__(self, width=8, layers=3):
        super().__init__()
        self.net = nn.Sequential(
            *[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)]
        )

    def forward(self, x):
        return self.net(x)


def token_loss(logits, targets):
    """Mean cross entropy over the tokens that are not ignored."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def summed_token_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def tokens(batch: int, length: int, vocab: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ids and targets ``[batch, length]``."""
    return torch.randint(0, vocab, (batch, length)), torch.randint(0, vocab, (batch, length))


def llama(layers=2, **fields):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        bos_token_id=1, eos_token_id=2, **fields,
    )  # fmt: skip
    return LlamaForCausalLM(config).train()


def gpt2(layers=2, dropout=0.0):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=61, n_embd=32, n_layer=layers, n_head=4, n_positions=64,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return GPT2LMHeadModel(config).train()


def run_graph(
    graph: OpGraph, tensors: dict[str, torch.Tensor], inputs: dict[str, torch.Tensor]
) -> torch.Tensor:
    """Interprets a graph on real tensors and returns the loss.

    Args:
        tensors: parameters and buffers by qualified name.
        inputs: by name, at the batch of the graph.
    """
    values: dict[Ref, torch.Tensor] = {}

    def real(arg: Any) -> Any:
        if isinstance(arg, Ref):
            return values[arg]
        if isinstance(arg, BatchInt):
            return arg.at(graph.batch)
        if isinstance(arg, TorchValue):
            return torch.device(arg.name) if arg.kind == "device" else getattr(torch, arg.name)
        return [real(item) for item in arg] if isinstance(arg, tuple) else arg

    for node in graph.nodes:
        if node.kind == "call":
            _, name, overload = node.target.split(".")
            operator = getattr(getattr(torch.ops.aten, name), overload)
            result = operator(
                *(real(arg) for arg in node.args), **{k: real(v) for k, v in node.kwargs}
            )
        elif node.kind == "constant":
            dtype = getattr(torch, node.outputs[0].dtype)
            result = torch.tensor(real(node.args[0]), dtype=dtype)
        else:
            result = (inputs if node.kind == "input" else tensors)[node.target]
        outputs = result if isinstance(result, (list, tuple)) else [result]
        for index, (output, meta) in enumerate(zip(outputs, node.outputs, strict=True)):
            assert tuple(output.shape) == meta.shape, node.name
            assert str(output.dtype) == f"torch.{meta.dtype}", node.name
            values[Ref(node.name, index)] = output
    return values[graph.output]


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """All parameters and buffers, tied names included."""
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
