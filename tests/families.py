"""Tiny twins of the models of the zoo: presets with two layers, small widths and no dropout.

``TINY`` has one of each family, whose sizes the others of the family have too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from autoplan.zoo.preset import Preset
from autoplan.zoo.presets import PRESETS
from autoplan.zoo.pretrained import pretrained
from autoplan.zoo.subject import ModelUnderPlan
from autoplan.zoo.written import written
from autoplan.zoo.written.build import RECOMMENDERS
from tests.parity.models import initialise

LENGTH = 8
VOCAB = 32
DEPTHS = (
    "n_layer", "num_hidden_layers", "num_layers", "num_decoder_layers", "encoder_layers",
    "decoder_layers", "layers",
)  # fmt: skip

DENSE = "first_k_dense_replace"
STAGES = "depths"

_HEADS = {"num_attention_heads": 8}
_GPT = {"n_embd": 16, "n_head": 8, "n_positions": LENGTH}
_WIDTH = {"hidden_size": 32, "intermediate_size": 64, **_HEADS}
_ROTARY = {**_WIDTH, "num_key_value_heads": 4, "max_position_embeddings": 4 * LENGTH}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 8}
_DEEPSEEK = {
    **_ROTARY, **_EXPERTS, "num_key_value_heads": 8, "n_routed_experts": 8, "n_group": 4,
    "topk_group": 2, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4, "v_head_dim": 4,
}  # fmt: skip
_OPT = {"hidden_size": 32, "ffn_dim": 64, "max_position_embeddings": LENGTH, **_HEADS}
_T5 = {"d_model": 32, "d_ff": 64, "d_kv": 4, "num_heads": 8}
_BART = {
    "d_model": 32, "max_position_embeddings": LENGTH,
    **{f"{side}_attention_heads": 8 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 64 for side in ("encoder", "decoder")},
}  # fmt: skip

_WHISPER = {
    "d_model": 32, "num_mel_bins": 8, "max_source_positions": 6, "max_target_positions": LENGTH,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    **{f"{side}_attention_heads": 8 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 64 for side in ("encoder", "decoder")},
}  # fmt: skip
_CONVNEXT = {
    "hidden_sizes": [8, 16], "num_stages": 2, "image_size": 16, "patch_size": 2, "num_labels": 8,
}  # fmt: skip
_SWIN = {
    "embed_dim": 16, "num_heads": [2, 4], "window_size": 4, "image_size": 16, "patch_size": 2,
    "num_labels": 8,
}  # fmt: skip

TINY: Mapping[str, Mapping[str, Any]] = {
    "gpt2": _GPT,
    "gpt3-125m": _GPT,
    "opt-125m": {**_OPT, "word_embed_proj_dim": 32},
    "opt-350m": {**_OPT, "word_embed_proj_dim": 16},
    "falcon-40b": {"hidden_size": 32, "num_kv_heads": 4, **_HEADS},
    "llama2-7b": {**_ROTARY, "num_key_value_heads": 8},
    "llama3.2-1b": {**_ROTARY, "head_dim": 8},
    "mistral-7b": _ROTARY,
    "qwen2-7b": _ROTARY,
    "qwen3-8b": {**_ROTARY, "head_dim": 8},
    "gemma-2b": {**_ROTARY, "head_dim": 8, "num_key_value_heads": 1},
    "gemma2-9b": {**_ROTARY, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4},
    "mixtral-8x7b": _ROTARY,
    "qwen3-30b-a3b": {**_ROTARY, **_EXPERTS, "head_dim": 8, "num_experts": 8},
    "deepseek-v3": _DEEPSEEK,
    "bert-base": {**_WIDTH, "max_position_embeddings": LENGTH},
    "roberta-base": {**_WIDTH, "max_position_embeddings": LENGTH + 2},
    "vit-b16": {**_WIDTH, "image_size": 16, "patch_size": 8, "num_labels": 8},
    "t5-small": _T5,
    "bart-base": _BART,
    "whisper-small": _WHISPER,
    "resnet50": {
        "embedding_size": 8,
        "hidden_sizes": [16, 32],
        "num_labels": 8,
        "image_size": 16,
    },
    "convnext-tiny": _CONVNEXT,
    "swin-tiny": _SWIN,
    "mamba2-130m": {
        "hidden_size": 32,
        "num_heads": 8,
        "head_dim": 8,
        "state_size": 8,
        "chunk_size": 4,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "lstm-66m": {"width": 16, "positions": LENGTH},
    "pangu-200b": {"width": 32, "heads": 8, "positions": LENGTH},
    "switch-base-8": {
        "width": 32,
        "hidden": 16,
        "heads": 8,
        "experts": 8,
        "capacity": 2,
        "positions": LENGTH,
    },
    "dlrm-24b": {"dense": 5, "rows": (32, 40, 48), "width": 8, "bottom": (16,), "top": (32, 8)},
    "mmoe": {
        "features": 4,
        "rows": 32,
        "width": 8,
        "experts": 8,
        "hidden": 16,
        "outputs": 8,
        "tower": 8,
    },
}


def shallow(preset: Preset, layers: int, seq_len: int | None, **fields: Any) -> ModelUnderPlan:
    """The preset with this many layers (a stage), one of them dense if any is, and other fields."""
    fields = _shallow_fields(preset, layers, fields)
    length = None if preset.seq_len is None else seq_len
    return written(preset.model_type, fields, length, origin="a test") or pretrained(
        preset.model_type, fields, length, origin="a test"
    )


def _shallow_fields(preset: Preset, layers: int, fields: Mapping[str, Any]) -> dict[str, Any]:
    given = preset.fields()
    if DENSE in given:
        fields = {DENSE: 1, **fields}
    depths: dict[str, Any] = {name: layers for name in DEPTHS if name in given}
    if STAGES in given:
        each = next(v for k, v in {**given, **fields}.items() if k != STAGES and type(v) is list)
        depths = {STAGES: [layers] * len(each)}
    assert depths or preset.model_type in RECOMMENDERS, f"no depth among {sorted(given)}"
    return {**given, **depths, **fields}


def tiny(name: str, layers: int = 2, **fields: Any) -> ModelUnderPlan:
    """The tiny twin of a preset, without dropout, on the meta device."""
    return shallow(PRESETS[name], layers, LENGTH, **{**_tiny_fields(name), **fields})


def twin_key(name: str, **fields: Any) -> str:
    """Equal for presets that have the same tiny twin."""
    preset = PRESETS[name]
    small = _shallow_fields(preset, 2, {**_tiny_fields(name), **fields})
    return json.dumps([preset.model_type, small], sort_keys=True)


def _tiny_fields(name: str) -> dict[str, Any]:
    preset = PRESETS[name]
    still = dict.fromkeys(preset.dropout, 0.0)
    vocabulary = {"vocab_size": VOCAB} if preset.seq_len else {}
    if name in TINY:
        return {**still, **vocabulary, **TINY[name]}
    alike = next(n for n in TINY if PRESETS[n].model_type == preset.model_type)
    return {**still, **vocabulary, **TINY[alike], **_key_heads(preset.fields())}


def _key_heads(fields: Mapping[str, Any]) -> dict[str, int]:
    """As many key heads as there are query heads, one, or a number between, as published."""
    if "num_key_value_heads" not in fields:
        return {}
    keys, queries = fields["num_key_value_heads"], fields["num_attention_heads"]
    return {"num_key_value_heads": 1 if keys == 1 else 8 if keys == queries else 4}


def real(name: str, layers: int = 2, **fields: Any) -> nn.Module:
    """The tiny twin in float64 with weights, the same in every call.

    Experts run one after another: the one implementation of transformers that takes float64.
    """
    subject = tiny(name, layers, **fields)
    if not hasattr(subject.model, "config"):
        return initialise(subject.model.to_empty(device="cpu"), torch.float64)
    subject.model.config._experts_implementation = "eager"
    return initialise(type(subject.model)(subject.model.config).train(), torch.float64)


def traced(name: str) -> OpGraph:
    """The graph of the tiny twin in float64."""
    return capture(real(name), random_batch(tiny(name), 2, torch.float64))


def random_batch(subject: ModelUnderPlan, batch: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Inputs like the subject's; about a third of the labels of tokens are ignored."""
    made = {}
    for name, given in subject.example_inputs.items():
        shape = (batch, *given.shape[1:])
        if given.is_floating_point():
            made[name] = torch.randn(shape, dtype=dtype)
            continue
        made[name] = torch.randint(VOCAB if len(shape) > 1 else 8, shape)
        if name == "labels" and len(shape) > 1:
            made[name][torch.rand(shape) < 0.3] = -100
    return made
