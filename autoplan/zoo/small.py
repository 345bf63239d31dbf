"""A published model made small: fewer layers and sizes, with the same operators in every layer.

Sizes keep what decides which operators a model has and how they can be split: query heads stay
several to a key head or one, a width stays that of all heads or another, a window stays shorter
than the sequence or longer. All of them divide by the tensor parallel degree where the published
ones divide by theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autoplan.zoo.plain import plain
from autoplan.zoo.pretrained import pretrained
from autoplan.zoo.subject import ModelUnderPlan

DEPTHS = ("n_layer", "num_hidden_layers", "num_layers", "num_decoder_layers", "encoder_layers",
          "decoder_layers")  # fmt: skip
DENSE_DEPTH = "first_k_dense_replace"

_HEADS = ("num_attention_heads", "n_head", "num_heads", "encoder_attention_heads",
          "decoder_attention_heads")  # fmt: skip
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads")
_WIDTHS = ("hidden_size", "n_embd", "d_model")
_HEAD_SIZES = ("head_dim", "d_kv", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_HIDDEN = ("intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner")
_LENGTHS = ("n_positions", "max_position_embeddings", "max_source_positions",
            "max_target_positions")  # fmt: skip
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
_HEAD_SIZE = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """How small.

    Attributes:
        layers: of every stack.
        dense_layers: at its beginning, of a model whose other layers have experts.
        tp, small_tp: the tensor parallel degree of the whole model, and of the small one.
    """

    layers: int
    dense_layers: int
    tp: int
    small_tp: int

    @property
    def unit(self) -> int:
        """What sizes divide by."""
        return max(2, self.small_tp)


def shrunk(
    model_type: str, fields: Mapping[str, Any], seq_len: int | None, scale: Scale, *, origin: str
) -> ModelUnderPlan:
    """The small model of a transformers config, on the meta device and in train mode.

    Args:
        seq_len: tokens per sample of the whole model; None for images.

    Raises:
        PlanError: transformers refuses the small config.
    """
    length = None if seq_len is None else 8 * scale.unit
    small = _sizes(fields, seq_len, scale)
    built = plain(model_type, small, length, origin=origin)
    return built or pretrained(model_type, small, length, origin=origin)


def depth(fields: Mapping[str, Any]) -> int:
    """Layers of the deepest stack of a config; 0 where it states none."""
    return max((fields[name] for name in DEPTHS if name in fields), default=0)


def _sizes(fields: Mapping[str, Any], seq_len: int | None, scale: Scale) -> dict[str, Any]:
    found = dict(fields)
    heads, key_heads = _heads(fields, scale)
    width = heads * _HEAD_SIZE
    if "head_dim" in fields and fields["head_dim"] * _first(fields, _HEADS) != _first(
        fields, _WIDTHS
    ):
        width *= 2
    rules: list[tuple[tuple[str, ...], Callable[[Any], Any]]] = [
        (_HEADS, lambda _: heads),
        (_KEY_HEADS, lambda _: key_heads),
        (_WIDTHS, lambda _: width),
        (("word_embed_proj_dim",), lambda n: width if n == _first(fields, _WIDTHS) else width // 2),
        (_HEAD_SIZES, lambda _: _HEAD_SIZE),
        (("query_pre_attn_scalar", "q_lora_rank", "kv_lora_rank"), lambda _: _HEAD_SIZE),
        (_HIDDEN, lambda _: 4 * width),
        (("moe_intermediate_size",), lambda _: 4 * scale.unit),
        (("vocab_size",), lambda _: 32 * scale.unit),
        (_LENGTHS, lambda n: _positions(n, seq_len, scale)),
        (("sliding_window",), lambda n: (4 if n < (seq_len or 0) else 16) * scale.unit),
        (_EXPERTS, lambda _: 4 * scale.unit),
        (("num_experts_per_tok", "topk_group"), lambda n: min(n, 2)),
        (("n_group",), lambda n: min(n, 4)),
        (_TOKENS, lambda n: min(n, 31) if isinstance(n, int) else n),
        (("image_size",), lambda _: 16),
        (("patch_size",), lambda _: 4),
        (("num_labels",), lambda _: 8),
        (DEPTHS, lambda _: scale.layers),
        ((DENSE_DEPTH,), lambda _: scale.dense_layers),
    ]
    for names, small in rules:
        found |= {name: small(found[name]) for name in names if found.get(name) is not None}
    layers = depth(fields)
    return {
        name: value[: scale.layers] if isinstance(value, list) and len(value) == layers else value
        for name, value in found.items()
    }


def _heads(fields: Mapping[str, Any], scale: Scale) -> tuple[int, int]:
    """Query heads and key heads."""
    queries = _first(fields, _HEADS)
    keys = _first(fields, _KEY_HEADS) or queries
    small = scale.unit if keys % scale.tp == 0 and keys > 1 else math.gcd(keys, scale.small_tp)
    return small * min(queries // keys, scale.unit), small


def _positions(number: int, seq_len: int | None, scale: Scale) -> int:
    """Positions of the model: a few more than the sequence has, or many."""
    beyond = number - (seq_len or 0)
    return 8 * scale.unit + (beyond if beyond < 8 else 24 * scale.unit)


def _first(fields: Mapping[str, Any], names: tuple[str, ...]) -> int:
    return next((fields[name] for name in names if fields.get(name) is not None), 0)
