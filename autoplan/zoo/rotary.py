"""Causal language models whose positions turn queries and keys: Llama and its kin.

Llama 2 (Touvron et al. 2023), Llama 3 (Dubey et al. 2024, table 3; 3.1 and 3.2 by their model
cards), Mistral 7B (Jiang et al. 2023; version 0.3, without a sliding window), Qwen2 (Yang et al.
2024, table 1), Qwen3 (Yang et al. 2025, table 1), Gemma (2024, table 1), Gemma 2 (2024, table 1;
its capped attention scores are computed step by step, not by a fused kernel). None has dropout.
Qwen's default length is that of most of its pretraining.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autoplan.zoo.preset import NO_DROPOUT, Preset


def rotary(
    model_type: str, width: int, hidden: int, layers: int, heads: int, kv_heads: int, **other: Any
) -> Preset:
    """A model of ``width`` with gated products of ``hidden``.

    ``max_position_embeddings`` among ``other`` is the default length, at most 8192.
    """
    return Preset(
        model_type=model_type,
        seq_len=min(other["max_position_embeddings"], 8192),
        dropout=NO_DROPOUT,
        config={
            "hidden_size": width,
            "intermediate_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            **other,
        },
    )


def turns(theta: float) -> dict[str, Any]:
    """Rotation of positions by the angles of base ``theta``, without any scaling."""
    return {"rope_type": "default", "rope_theta": theta}


def _llama2(width: int, hidden: int, layers: int, heads: int, kv_heads: int) -> Preset:
    return rotary(
        "llama", width, hidden, layers, heads, kv_heads,
        vocab_size=32000, max_position_embeddings=4096, rms_norm_eps=1e-5,
        rope_parameters=turns(10000.0),
    )  # fmt: skip


def _llama3(width: int, hidden: int, layers: int, heads: int, **other: Any) -> Preset:
    fields = {
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "rope_parameters": turns(500000.0),
    }
    return rotary("llama", width, hidden, layers, heads, 8, **{**fields, **other})


def _llama31(width: int, hidden: int, layers: int, heads: int, **other: Any) -> Preset:
    scaled = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": other.pop("factor", 8.0),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    return _llama3(
        width, hidden, layers, heads,
        max_position_embeddings=131072, rope_parameters=scaled, **other,
    )  # fmt: skip


def _mistral(width: int, hidden: int, layers: int, heads: int, kv_heads: int) -> Preset:
    return rotary(
        "mistral", width, hidden, layers, heads, kv_heads,
        vocab_size=32768, max_position_embeddings=32768, rms_norm_eps=1e-5, sliding_window=None,
        rope_parameters=turns(1000000.0),
    )  # fmt: skip


def _qwen(
    version: int, width: int, hidden: int, layers: int, heads: int, kv_heads: int, **other: Any
) -> Preset:
    fields = {
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_parameters": turns(1000000.0),
        **({"head_dim": 128} if version == 3 else {}),
        **other,
    }
    made = rotary(f"qwen{version}", width, hidden, layers, heads, kv_heads, **fields)
    return replace(made, seq_len=4096)


def _gemma(
    model_type: str, width: int, hidden: int, layers: int, heads: int, kv_heads: int, head: int,
    **other: Any,
) -> Preset:  # fmt: skip
    return rotary(
        model_type, width, hidden, layers, heads, kv_heads,
        vocab_size=256000, max_position_embeddings=8192, rms_norm_eps=1e-6, head_dim=head,
        rope_parameters=turns(10000.0), tie_word_embeddings=True, **other,
    )  # fmt: skip


def _gemma2(
    width: int, hidden: int, layers: int, heads: int, kv_heads: int, head: int, scale: int
) -> Preset:
    """``scale`` is the head size by which attention scores are scaled, not always their own."""
    return _gemma(
        "gemma2", width, hidden, layers, heads, kv_heads, head,
        query_pre_attn_scalar=scale, sliding_window=4096,
        attn_logit_softcapping=50.0, final_logit_softcapping=30.0,
    )  # fmt: skip


_TIED: Mapping[str, Any] = {"tie_word_embeddings": True}

ROTARY: Mapping[str, Preset] = {
    "llama2-7b": _llama2(4096, 11008, 32, 32, 32),
    "llama2-13b": _llama2(5120, 13824, 40, 40, 40),
    "llama2-70b": _llama2(8192, 28672, 80, 64, 8),
    "llama3-8b": _llama3(4096, 14336, 32, 32),
    "llama3-70b": _llama3(8192, 28672, 80, 64),
    "llama3-405b": _llama31(16384, 53248, 126, 128),
    "llama3.1-8b": _llama31(4096, 14336, 32, 32),
    "llama3.1-70b": _llama31(8192, 28672, 80, 64),
    "llama3.1-405b": _llama31(16384, 53248, 126, 128),
    "llama3.2-1b": _llama31(2048, 8192, 16, 32, factor=32.0, head_dim=64, **_TIED),
    "llama3.2-3b": _llama31(3072, 8192, 28, 24, factor=32.0, head_dim=128, **_TIED),
    "mistral-7b": _mistral(4096, 14336, 32, 32, 8),
    "qwen2-0.5b": _qwen(2, 896, 4864, 24, 14, 2, **_TIED),
    "qwen2-1.5b": _qwen(2, 1536, 8960, 28, 12, 2, **_TIED),
    "qwen2-7b": _qwen(2, 3584, 18944, 28, 28, 4, vocab_size=152064),
    "qwen2-72b": _qwen(2, 8192, 29568, 80, 64, 8, vocab_size=152064),
    "qwen3-0.6b": _qwen(3, 1024, 3072, 28, 16, 8, **_TIED),
    "qwen3-1.7b": _qwen(3, 2048, 6144, 28, 16, 8, **_TIED),
    "qwen3-4b": _qwen(3, 2560, 9728, 36, 32, 8, **_TIED),
    "qwen3-8b": _qwen(3, 4096, 12288, 36, 32, 8),
    "qwen3-14b": _qwen(3, 5120, 17408, 40, 40, 8),
    "qwen3-32b": _qwen(3, 5120, 25600, 64, 64, 8),
    "gemma-2b": _gemma("gemma", 2048, 16384, 18, 8, 1, 256),
    "gemma-7b": _gemma("gemma", 3072, 24576, 28, 16, 16, 256),
    "gemma2-2b": _gemma2(2304, 9216, 26, 8, 4, 256, 256),
    "gemma2-9b": _gemma2(3584, 14336, 42, 16, 8, 256, 256),
    "gemma2-27b": _gemma2(4608, 36864, 46, 32, 16, 128, 144),
}
