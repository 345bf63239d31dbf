"""Sizes of public models that rows name without giving them, from the models' own configs."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownModel:
    """Fields as in a row of measurements."""

    arch: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    head_dim: int | None = None
    ffn_type: str = "swiglu"
    moe_experts: int | None = None
    moe_topk: int | None = None


def _llama(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int) -> KnownModel:
    return KnownModel(
        arch="llama",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocab=vocab,
    )


def _gpt(layers: int, hidden: int, heads: int, *, kv_heads: int = 0, vocab: int) -> KnownModel:
    return KnownModel(
        arch="gpt",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads or heads,
        ffn=4 * hidden,
        vocab=vocab,
        ffn_type="gelu",
    )


def _mixtral(layers: int, hidden: int, heads: int, ffn: int, vocab: int) -> KnownModel:
    return KnownModel(
        arch="moe",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=8,
        ffn=ffn,
        vocab=vocab,
        moe_experts=8,
        moe_topk=2,
    )


# A name matches where all its words stand in the row's model; the first match counts.
_MODELS: tuple[tuple[str, KnownModel], ...] = (
    (r"llama ?3\.2 ?1 ?b", _llama(16, 2048, 32, 8, 8192, 128256)),
    (r"llama ?3\.2 ?3 ?b", _llama(28, 3072, 24, 8, 8192, 128256)),
    (r"llama ?3(\.[13])? ?8 ?b", _llama(32, 4096, 32, 8, 14336, 128256)),
    (r"llama ?3(\.[13])? ?70 ?b", _llama(80, 8192, 64, 8, 28672, 128256)),
    (r"llama ?3(\.1)? ?405 ?b", _llama(126, 16384, 128, 8, 53248, 128256)),
    (r"llama ?2? ?7 ?b", _llama(32, 4096, 32, 32, 11008, 32000)),
    (r"llama ?2? ?13 ?b", _llama(40, 5120, 40, 40, 13824, 32000)),
    (r"llama ?2 ?70 ?b", _llama(80, 8192, 64, 8, 28672, 32000)),
    (r"llama ?(1 )?(30|33) ?b", _llama(60, 6656, 52, 52, 17920, 32000)),
    (r"llama ?(1 )?65 ?b", _llama(80, 8192, 64, 64, 22016, 32000)),
    (r"mistral ?7 ?b", _llama(32, 4096, 32, 8, 14336, 32000)),
    (r"mixtral ?8x7 ?b", _mixtral(32, 4096, 32, 14336, 32000)),
    (r"mixtral ?8x22 ?b", _mixtral(56, 6144, 48, 16384, 32768)),
    (r"phi ?1\.5", _gpt(24, 2048, 32, vocab=51200)),
    (r"stablelm (base )?alpha ?3 ?b", _gpt(16, 4096, 32, vocab=50688)),
    (r"stablelm (base )?alpha ?7 ?b", _gpt(16, 6144, 48, vocab=50432)),
    (r"falcon ?7 ?b", _gpt(32, 4544, 71, kv_heads=1, vocab=65024)),
    (r"falcon ?40 ?b", _gpt(60, 8192, 128, kv_heads=8, vocab=65024)),
    (r"pythia ?6\.9 ?b", _gpt(32, 4096, 32, vocab=50432)),
    (r"pythia ?12 ?b", _gpt(36, 5120, 40, vocab=50688)),
    (r"gpt ?neox ?20 ?b", _gpt(44, 6144, 64, vocab=50432)),
    (r"gpt ?3 ?175 ?b", _gpt(96, 12288, 96, vocab=50257)),
    (r"gpt ?2 ?xl|gpt ?2 ?1\.5 ?b", _gpt(48, 1600, 25, vocab=50257)),
    (r"gpt ?2 ?large", _gpt(36, 1280, 20, vocab=50257)),
    (r"gpt ?2 ?medium", _gpt(24, 1024, 16, vocab=50257)),
    (r"gpt ?2( ?small)?$", _gpt(12, 768, 12, vocab=50257)),
)


def known_model(name: str) -> KnownModel | None:
    """The public model of that name, however it is spelled; None for others."""
    words = re.sub(r"[\s_/-]+", " ", name.lower()).strip()
    for pattern, model in _MODELS:
        if re.search(rf"(?<![a-z0-9])(meta )?{pattern}(?![a-z0-9])", words):
            return model
    return None
