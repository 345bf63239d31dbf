"""The sizes of a transformer decoder, as papers give them, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Transformer:
    """One stack of equal blocks between a token embedding and a head over the vocabulary.

    Attributes:
        head_dim: of queries, keys and values.
        ffn: width between the two products of the feed-forward block.
        gated: two products in (SwiGLU, GEGLU), not one.
        rotary: positions turn queries and keys; else a table of them is added to the embedding.
        biases: products and norms have one (GPT).
        tied: the head's weight is the embedding's.
        experts: feed-forward blocks a layer has, 0 where it is dense; ``experts_per_token`` of
            them, ``expert_ffn`` wide, see each token.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gated: bool
    rotary: bool
    biases: bool
    tied: bool
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0

    @property
    def attention_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def attention_parameters(self) -> int:
        """Weights of the four products around attention in one layer."""
        return self.hidden * (2 * self.attention_width + 2 * self.kv_width)

    @property
    def feed_forward_parameters(self) -> int:
        """Weights of one layer's feed-forward block, of all its experts."""
        products = 3 if self.gated else 2
        if self.experts:
            return self.experts * products * self.hidden * self.expert_ffn
        return products * self.hidden * self.ffn

    @property
    def replicated_parameters(self) -> int:
        """Norms, router and biases of one layer."""
        norms = 2 * self.hidden * (2 if self.biases else 1)
        router = self.hidden * self.experts
        biases = self.attention_width + 2 * self.kv_width + 2 * self.hidden + self.ffn
        return norms + router + (biases if self.biases else 0)

    @property
    def layer_parameters(self) -> int:
        return self.attention_parameters + self.feed_forward_parameters + self.replicated_parameters

    @property
    def embedding_parameters(self) -> int:
        return self.vocab * self.hidden

    def parameters(self, positions: int = 0) -> int:
        """All weights; ``positions`` is the length of a table of positions."""
        tables = self.embedding_parameters * (1 if self.tied else 2) + positions * self.hidden
        final_norm = self.hidden * (2 if self.biases else 1)
        return self.layers * self.layer_parameters + tables + final_norm
