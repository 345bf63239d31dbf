"""Causal language models with positions added to the tokens, or of a form of their own.

GPT-2 (Radford et al. 2019), GPT-3 (Brown et al. 2020, table 2.1), OPT (Zhang et al. 2022, table 1)
and Falcon (Almazrouei et al. 2023). GPT-3 is built as GPT-2 is: attention is dense in all layers,
where the original alternates with banded attention; the 13B is 5120 wide (the table's 5140 does not
divide into its heads) and the 1.3B has 16 heads of 128 (the table's 24 of 128 are not its width).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoplan.zoo.preset import NO_DROPOUT, Preset


def _gpt2(width: int, layers: int, heads: int, positions: int = 1024, rate: float = 0.1) -> Preset:
    return Preset(
        model_type="gpt2",
        seq_len=positions,
        dropout={"resid_pdrop": rate, "embd_pdrop": rate, "attn_pdrop": rate},
        config={
            "vocab_size": 50257,
            "n_positions": positions,
            "n_embd": width,
            "n_layer": layers,
            "n_head": heads,
        },
    )


def _gpt3(width: int, layers: int, heads: int) -> Preset:
    """The paper states no dropout."""
    return _gpt2(width, layers, heads, positions=2048, rate=0.0)


def _opt(width: int, layers: int, heads: int, **other: Any) -> Preset:
    return Preset(
        model_type="opt",
        seq_len=2048,
        dropout={"dropout": 0.1},
        config={
            "vocab_size": 50272,
            "max_position_embeddings": 2048,
            "hidden_size": width,
            "word_embed_proj_dim": width,
            "ffn_dim": 4 * width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            **other,
        },
    )


def _falcon(width: int, layers: int, heads: int, kv_heads: int) -> Preset:
    return Preset(
        model_type="falcon",
        seq_len=2048,
        dropout=NO_DROPOUT,
        config={
            "vocab_size": 65024,
            "max_position_embeddings": 2048,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "alibi": False,
            "bias": False,
            "parallel_attn": True,
            "new_decoder_architecture": True,
            "num_kv_heads": kv_heads,
        },
    )


DECODERS: Mapping[str, Preset] = {
    "gpt2": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 24, 16),
    "gpt2-large": _gpt2(1280, 36, 20),
    "gpt2-xl": _gpt2(1600, 48, 25),
    "gpt3-125m": _gpt3(768, 12, 12),
    "gpt3-350m": _gpt3(1024, 24, 16),
    "gpt3-760m": _gpt3(1536, 24, 16),
    "gpt3-1.3b": _gpt3(2048, 24, 16),
    "gpt3-2.7b": _gpt3(2560, 32, 32),
    "gpt3-6.7b": _gpt3(4096, 32, 32),
    "gpt3-13b": _gpt3(5120, 40, 40),
    "gpt3-175b": _gpt3(12288, 96, 96),
    "opt-125m": _opt(768, 12, 12),
    "opt-350m": _opt(1024, 24, 16, word_embed_proj_dim=512, do_layer_norm_before=False),
    "opt-1.3b": _opt(2048, 24, 32),
    "opt-2.7b": _opt(2560, 32, 32),
    "opt-6.7b": _opt(4096, 32, 32),
    "opt-13b": _opt(5120, 40, 40),
    "opt-30b": _opt(7168, 48, 56),
    "opt-66b": _opt(9216, 64, 72),
    "opt-175b": _opt(12288, 96, 96),
    "falcon-40b": _falcon(8192, 60, 128, 8),
}
