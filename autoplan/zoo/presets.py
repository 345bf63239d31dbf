"""Published language models as data, built on the meta device from transformers configs.

Sizes are those of the papers: GPT-2 (Radford et al. 2019), Llama 3 (Dubey et al. 2024, table 3).
Dropout is the published config's: GPT-2 trains with 0.1 everywhere, Llama without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autoplan.errors import PlanError
from autoplan.zoo.causal_lm import causal_lm
from autoplan.zoo.subject import ModelUnderPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """One published model.

    Attributes:
        model_type: transformers' name of the architecture.
        seq_len: default tokens per sample.
        residual_dropout: dropout of embeddings and of what is added to the residual stream.
        attention_dropout: dropout of attention weights.
        config: the remaining fields of the transformers config.
    """

    model_type: str
    seq_len: int
    residual_dropout: float
    attention_dropout: float
    config: Mapping[str, Any] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """All fields of the transformers config."""
        if self.model_type == "gpt2":
            residual = {"resid_pdrop": self.residual_dropout, "embd_pdrop": self.residual_dropout}
            dropout = {**residual, "attn_pdrop": self.attention_dropout}
        else:
            dropout = {"attention_dropout": self.attention_dropout}
        return {**self.config, **dropout}


def _gpt2(width: int, layers: int, heads: int) -> Preset:
    return Preset(
        model_type="gpt2",
        seq_len=1024,
        residual_dropout=0.1,
        attention_dropout=0.1,
        config={
            "vocab_size": 50257,
            "n_positions": 1024,
            "n_embd": width,
            "n_layer": layers,
            "n_head": heads,
        },
    )


def _llama3(width: int, hidden: int, layers: int, heads: int, **other: Any) -> Preset:
    return Preset(
        model_type="llama",
        seq_len=8192,
        residual_dropout=0.0,
        attention_dropout=0.0,
        config={
            "vocab_size": 128256,
            "max_position_embeddings": 8192,
            "hidden_size": width,
            "intermediate_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "bos_token_id": 128000,
            "eos_token_id": 128001,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
            **other,
        },
    )


_LONG_CONTEXT = {
    "max_position_embeddings": 131072,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}

PRESETS: Mapping[str, Preset] = {
    "gpt2": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 24, 16),
    "gpt2-large": _gpt2(1280, 36, 20),
    "gpt2-xl": _gpt2(1600, 48, 25),
    "llama3-8b": _llama3(4096, 14336, 32, 32),
    "llama3-70b": _llama3(8192, 28672, 80, 64),
    "llama3-405b": _llama3(16384, 53248, 126, 128, **_LONG_CONTEXT),
}


def names() -> tuple[str, ...]:
    """Names of the presets."""
    return tuple(PRESETS)


def build(name: str, seq_len: int | None = None) -> ModelUnderPlan:
    """Builds a preset on the meta device, in train mode.

    Args:
        name: one of ``names()``.
        seq_len: tokens per sample; the preset's default (GPT-2 1024, Llama 3 8192) when None.

    Raises:
        PlanError: unknown name, a sequence the model cannot take, or transformers missing.
    """
    preset = PRESETS.get(name)
    if preset is None:
        raise PlanError(f"no model named {name!r} in the zoo; it has {', '.join(PRESETS)}")
    length = preset.seq_len if seq_len is None else seq_len
    return causal_lm(preset.model_type, preset.fields(), length, origin=name)
