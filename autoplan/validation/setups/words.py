"""Recomputation, precision and attention from the words that rows use for them."""

from __future__ import annotations

import re

from autoplan.validation.published.numbers import says_nothing
from autoplan.validation.published.rows import IncompleteRowError, MeasuredRow
from autoplan.validation.setups.frameworks import Usage
from autoplan.validation.setups.precisions import named_dtypes
from autoplan.validation.setups.setup import AttentionKernel, Recompute, Tuning
from hardware_profiles.spec import DeviceSpec

# SQuAD's and Dolly's samples, which people pack for fine-tuning, have a few hundred tokens.
PACKED_TOKENS = 512
_SOME_LAYERS = re.compile(
    r"\b(of|partial|first|last|half|some|except)\b"
    r"|(?<!all )\b\d+\s*(%|layers?\b|blocks?\b|stages?\b)"
)
_TRAINING = re.compile(r"train|tun(e|ing)|\bsft\b|lora|adapter|layer|memory")
_TASKS: tuple[tuple[str, Tuning], ...] = (
    (r"adapter[_ -]?v2", "adapter-v2"),
    (r"adapter", "adapter"),
    (r"lora", "lora"),
)


def recompute_of(row: MeasuredRow, usage: Usage, assumed: list[str]) -> Recompute:
    """What runs twice.

    Raises:
        IncompleteRowError: only some layers are recomputed, or the words are not known.
    """
    words = row.recompute.lower()
    if words != "none" and says_nothing(words):
        assumed.append(f"recompute: {usage.recompute}, as {usage.framework.name} does")
        return usage.recompute
    if _SOME_LAYERS.search(words):
        raise IncompleteRowError(f"recompute {row.recompute!r}: layers differ")
    if "selective" in words:
        return _selective(words, usage)
    if re.match(r"(full|block|yes|true)", words):
        return "block"
    if re.match(r"(baseline )?(none|no|false|off)\b|sp only", words):
        return "none"
    raise IncompleteRowError(f"recompute {row.recompute!r} is not known")


def _selective(words: str, usage: Usage) -> Recompute:
    if re.search(r"layer|\b\d", words):
        raise IncompleteRowError("recompute of every second layer: layers differ")
    if "attention" in words:
        return "attention"
    if re.search(r"\bop", words):
        return "operators"
    return usage.selective


def dtype_of(row: MeasuredRow, device: DeviceSpec, assumed: list[str]) -> str:
    """What products with weights compute in; the first precision named counts.

    Raises:
        IncompleteRowError: a precision that the device does not have, or activations of four bytes.
    """
    if says_nothing(row.precision):
        assumed.append("precision: bf16")
        return "bfloat16"
    named = named_dtypes(row.precision)
    if not named or named[0] is None:
        raise IncompleteRowError(f"precision {row.precision!r} is not priced")
    dtype = named[0]
    if dtype not in device.peak_flops:
        raise IncompleteRowError(f"precision {row.precision!r}: {device.name} has no {dtype}")
    if "/" in row.precision and len(named) > 1:
        assumed.append(f"precision: {dtype} of {row.precision}")
    return dtype


def attention_of(row: MeasuredRow, usage: Usage) -> AttentionKernel:
    """Whether the fused kernel runs or scores are written."""
    words = row.attn_impl.lower()
    if re.search(r"flash|sdpa|cudnn|fa[23]|memory.?efficient", words):
        return "flash"
    if re.search(r"softmax|unfused|math|eager|naive", words):
        return "scores"
    return usage.attention


def attention_generation_of(row: MeasuredRow, usage: Usage) -> int:
    """Generation of the fused attention kernel: as the row's words name it, or the framework's."""
    words = row.attn_impl.lower()
    for pattern, named in (
        (r"fa3|attention.?3|cudnn", 3),
        (r"fa2|attention.?2|v2", 2),
        (r"fa1|attention.?1|v1", 1),
    ):
        if re.search(pattern, words):
            return named
    return usage.framework.attention_generation


def check_task(row: MeasuredRow) -> None:
    """Refuses what is not a step of training a model with its own loss.

    Raises:
        IncompleteRowError: inference, or training with several models or passes.
    """
    if row.task and not _TRAINING.search(row.task.lower()):
        raise IncompleteRowError(f"task {row.task}: only training is priced")


def tuning_of(row: MeasuredRow) -> Tuning:
    """Which weights learn."""
    for pattern, tuning in _TASKS:
        if re.search(pattern, row.task.lower()):
            return tuning
    return "all"


def document_len_of(row: MeasuredRow, assumed: list[str]) -> int | None:
    """Length of the documents that are packed into a sequence; None where none are."""
    if not re.search(r"packed", f"{row.notes} {row.framework}".lower()):
        return None
    assumed.append(f"packed documents: of {PACKED_TOKENS} tokens")
    return PACKED_TOKENS


def quantised(row: MeasuredRow) -> bool:
    """Frozen weights in 4 bits (QLoRA, bitsandbytes)."""
    return bool(re.search(r"nf4|bnb|4.?bit|qlora", f"{row.precision} {row.task}".lower()))
