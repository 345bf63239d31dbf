"""Causal language models with layers of experts, of which each token has a few.

Mixtral 8x7B (Jiang et al. 2024, table 1) and 8x22B (its model card), Qwen3 (Yang et al. 2025,
table 2) and DeepSeek-V3 (DeepSeek-AI 2024, section 4.2), whose first three layers are dense, whose
attention keeps one latent of keys and values, and which here predicts one token, without the second
module of its training. None has dropout; routers are trained without a loss of their own. The
default lengths are those of most of the pretraining.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autoplan.zoo.preset import Preset
from autoplan.zoo.rotary import rotary, turns


def _mixtral(width: int, hidden: int, layers: int, heads: int, positions: int) -> Preset:
    return rotary(
        "mixtral", width, hidden, layers, heads, 8,
        vocab_size=32000, max_position_embeddings=positions, rms_norm_eps=1e-5,
        rope_parameters=turns(1000000.0), num_local_experts=8, num_experts_per_tok=2,
    )  # fmt: skip


def _qwen3(width: int, hidden: int, layers: int, heads: int) -> Preset:
    """``hidden`` is the width of one expert; there are no dense layers."""
    made = rotary(
        "qwen3_moe", width, 3 * width, layers, heads, 4,
        vocab_size=151936, max_position_embeddings=40960, rms_norm_eps=1e-6, head_dim=128,
        rope_parameters=turns(1000000.0), moe_intermediate_size=hidden, num_experts=128,
        num_experts_per_tok=8, norm_topk_prob=True,
    )  # fmt: skip
    return replace(made, seq_len=4096)


def _deepseek3() -> Preset:
    longer: dict[str, Any] = {
        **turns(10000.0),
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    made = rotary(
        "deepseek_v3", 7168, 18432, 61, 128, 128,
        vocab_size=129280, max_position_embeddings=163840, rms_norm_eps=1e-6,
        rope_parameters=longer, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128,
        qk_rope_head_dim=64, v_head_dim=128, first_k_dense_replace=3, moe_intermediate_size=2048,
        n_routed_experts=256, num_experts_per_tok=8, n_group=8, topk_group=4, n_shared_experts=1,
        norm_topk_prob=True, routed_scaling_factor=2.5,
    )  # fmt: skip
    return replace(made, seq_len=4096)


EXPERTS: Mapping[str, Preset] = {
    "mixtral-8x7b": _mixtral(4096, 14336, 32, 32, 32768),
    "mixtral-8x22b": _mixtral(6144, 16384, 56, 48, 65536),
    "qwen3-30b-a3b": _qwen3(2048, 768, 48, 32),
    "qwen3-235b-a22b": _qwen3(4096, 1536, 94, 64),
    "deepseek-v3": _deepseek3(),
}
