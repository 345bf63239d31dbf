"""Models that read all of their input at once: masked language models, and Vision Transformers.

BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019) and ViT (Dosovitskiy et al. 2021, table 1, with
a classifier of ImageNet's 1000 classes). The language models have dropout 0.1, ViT has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoplan.zoo.preset import NO_DROPOUT, Preset


def _sizes(width: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }


def _masked(model_type: str, width: int, layers: int, heads: int, **other: Any) -> Preset:
    return Preset(
        model_type=model_type,
        seq_len=512,
        dropout={"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
        config={**_sizes(width, layers, heads), **other},
    )


def _bert(width: int, layers: int, heads: int) -> Preset:
    return _masked("bert", width, layers, heads, vocab_size=30522, max_position_embeddings=512)


def _roberta(width: int, layers: int, heads: int) -> Preset:
    """Positions start after the number of the padding token, 1."""
    return _masked(
        "roberta", width, layers, heads,
        vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5,
    )  # fmt: skip


def _vit(width: int, layers: int, heads: int, patch: int) -> Preset:
    images = {"image_size": 224, "patch_size": patch, "num_labels": 1000}
    return Preset(
        model_type="vit",
        seq_len=None,
        dropout=NO_DROPOUT,
        config={**_sizes(width, layers, heads), **images},
    )


ENCODERS: Mapping[str, Preset] = {
    "bert-base": _bert(768, 12, 12),
    "bert-large": _bert(1024, 24, 16),
    "roberta-base": _roberta(768, 12, 12),
    "roberta-large": _roberta(1024, 24, 16),
    "vit-b16": _vit(768, 12, 12, 16),
    "vit-l16": _vit(1024, 24, 16, 16),
    "vit-h14": _vit(1280, 32, 16, 14),
}
