"""The transformer of a row: its sizes, and what its family settles (biases, positions, ties)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autoplan.validation.published.rows import IncompleteRowError, MeasuredRow
from autoplan.validation.setups.known_models import KnownModel, known_model
from autoplan.validation.setups.transformer import Transformer

_DECODERS = ("", "gpt", "llama", "moe")
_GPT2_VOCAB = 50257


@dataclass(frozen=True, kw_only=True, slots=True)
class _Family:
    """What models of one kind share beside their sizes."""

    rotary: bool
    biases: bool
    tied: bool


_GPT = _Family(rotary=False, biases=True, tied=True)
_LLAMA = _Family(rotary=True, biases=False, tied=False)
_NEOX = _Family(rotary=True, biases=True, tied=False)
_FAMILIES: tuple[tuple[str, _Family], ...] = (
    (r"mpt", _Family(rotary=False, biases=False, tied=True)),
    (r"nemotron", _Family(rotary=True, biases=False, tied=False)),
    (r"(stablelm|pythia|gpt.?neox|phi)", _NEOX),
    (r"falcon", _Family(rotary=True, biases=False, tied=True)),
    (r"llama.?3\.2", _Family(rotary=True, biases=False, tied=True)),
)


def transformer_of(
    row: MeasuredRow, assumed: list[str], *, needs_vocab: bool, vocab_multiple: int
) -> Transformer:
    """The model of a row.

    Args:
        row: sizes that it leaves open are those of the public model it names.
        assumed: what was assumed is added here.
        needs_vocab: False for a layer alone.
        vocab_multiple: the vocabulary is padded to a multiple of this.

    Raises:
        IncompleteRowError: not a decoder of equal blocks, or its sizes are not known.
    """
    arch = row.arch.lower()
    if arch not in _DECODERS:
        raise IncompleteRowError(f"arch {row.arch}: only gpt, llama and moe decoders are priced")
    public = known_model(row.model)
    layers, hidden, heads = _main_sizes(row, public, assumed)
    gated = _gated(row, public)
    experts = row.moe_experts or (public.moe_experts if public else None) or 0
    ffn = row.ffn or row.moe_ffn or (public.ffn if public else None)
    if ffn is None:
        if gated or experts:
            raise IncompleteRowError("ffn is not stated")
        ffn = 4 * hidden
        assumed.append("ffn: 4 x hidden")
    family = _family(row, gated)
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=row.kv_heads or (public.kv_heads if public else heads),
        head_dim=_head_dim(row, public, hidden, heads),
        ffn=ffn,
        vocab=_vocab(row, public, assumed, needs_vocab, vocab_multiple),
        gated=gated,
        rotary=family.rotary,
        biases=family.biases,
        tied=family.tied,
        experts=experts,
        experts_per_token=_experts_per_token(row, public) if experts else 0,
        expert_ffn=(row.moe_ffn or ffn) if experts else 0,
    )


def _main_sizes(
    row: MeasuredRow, public: KnownModel | None, assumed: list[str]
) -> tuple[int, int, int]:
    sizes = (row.layers, row.hidden, row.heads)
    if all(size is not None for size in sizes):
        return sizes  # type: ignore[return-value]
    if public is None:
        raise IncompleteRowError(
            "layers, hidden and heads are not stated and the model is not a known public one"
        )
    assumed.append("sizes: those of the public model of that name")
    return row.layers or public.layers, row.hidden or public.hidden, row.heads or public.heads


def _gated(row: MeasuredRow, public: KnownModel | None) -> bool:
    kind = row.ffn_type.lower() or (public.ffn_type if public else "")
    if kind:
        return "glu" in kind
    return row.arch.lower() in ("llama", "moe")


def _head_dim(row: MeasuredRow, public: KnownModel | None, hidden: int, heads: int) -> int:
    head_dim = row.head_dim or (public.head_dim if public else None)
    if head_dim is not None:
        return head_dim
    if hidden % heads:
        raise IncompleteRowError(f"hidden {hidden} does not split over {heads} heads")
    return hidden // heads


def _experts_per_token(row: MeasuredRow, public: KnownModel | None) -> int:
    chosen = row.moe_topk or (public.moe_topk if public else None)
    if chosen is None:
        raise IncompleteRowError("moe_topk is not stated")
    return chosen


def _family(row: MeasuredRow, gated: bool) -> _Family:
    name = row.model.lower()
    for pattern, family in _FAMILIES:
        if re.search(rf"(?<![a-z]){pattern}", name):
            return family
    return _LLAMA if gated or row.arch.lower() in ("llama", "moe") else _GPT


def _vocab(
    row: MeasuredRow,
    public: KnownModel | None,
    assumed: list[str],
    needed: bool,
    multiple: int,
) -> int:
    vocab = row.vocab or (public.vocab if public else None)
    if vocab is None:
        if not needed:
            return 0
        if row.arch.lower() != "gpt":
            raise IncompleteRowError("vocab is not stated")
        vocab = _GPT2_VOCAB
        assumed.append(f"vocab: {vocab}, that of GPT-2")
    return -(-vocab // multiple) * multiple
