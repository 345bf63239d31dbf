"""The framework of a row: its features by name and words, and its usual choices.

Where the name is missing, the source counts (a repository, or a paper's number). A name that is not
known here is taken for PyTorch in eager mode with autocast.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from autoplan.validation.published.rows import MeasuredRow
from autoplan.validation.setups.framework_features import (
    COMPOSER,
    DEEPSPEED,
    DEEPSPEED_ZERO,
    FLASH_ATTENTION,
    GALVATRON,
    MEGATRON_2021,
    MEGATRON_2022,
    MEGATRON_CORE,
    NEMO,
    PURE_BF16,
    PYTORCH,
    TORCHTITAN,
)
from autoplan.validation.setups.precisions import eight_bit
from autoplan.validation.setups.setup import AttentionKernel, Framework, Recompute


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """A framework, and what it does where a row leaves the choice open.

    Attributes:
        recompute, zero, attention: the defaults.
        selective: what its selective recompute runs again.
        splits_sequence: sequence parallelism goes with tensor parallelism.
        interleaves: pipelines can hold several model chunks on a rank.
        cuts_rank_batch: with a pipeline, the stated microbatch is the rank's batch, cut into as
            many microbatches as the pipeline has stages (torchtitan until 2025).
        vocab_multiple: the vocabulary is padded to a multiple of this, times ``tp``.
        known: False where the name was not recognised.
    """

    framework: Framework
    recompute: Recompute = "none"
    zero: int = 0
    attention: AttentionKernel = "flash"
    selective: Recompute = "attention"
    splits_sequence: bool = False
    interleaves: bool = False
    cuts_rank_batch: bool = False
    vocab_multiple: int = 1
    known: bool = True


_MEGATRON_USAGE = Usage(
    framework=MEGATRON_2022, attention="scores", interleaves=True, vocab_multiple=128
)


def usage_of(row: MeasuredRow) -> Usage:
    """The framework that a row names, with the features that the row's words switch on."""
    name = (row.framework or row.source).lower()
    for pattern, build in _BUILDERS:
        if re.search(pattern, name):
            return build(row)
    return replace(_pytorch(row), known=False)


def _megatron_lm(row: MeasuredRow) -> Usage:
    """One of three ages of Megatron-LM, by the source's year, the model, precision and device."""
    text = f"{row.framework} {row.source} {row.set}".lower()
    newer = row.arch.lower() in ("llama", "moe") or eight_bit(row.precision)
    if newer or re.search(r"core|h100|h200|b200|b300", f"{text} {row.gpu.lower()}"):
        return _megatron_core(row)
    if _of_2021(row):
        features = replace(MEGATRON_2021, overlaps_reductions=(row.pp or 1) == 1)
        return replace(_MEGATRON_USAGE, framework=features)
    return _MEGATRON_USAGE


def _megatron_core(row: MeasuredRow) -> Usage:
    features = MEGATRON_CORE
    if eight_bit(row.precision):
        features = replace(
            features, gradient_bytes=2, reduced_bytes=2, gathered_bytes=1, loss="fused"
        )
    overlaps = eight_bit(row.precision) or re.search(
        r"tp.?comm", f"{row.framework} {row.notes}".lower()
    )
    return replace(
        _MEGATRON_USAGE,
        framework=replace(features, overlaps_tensor_parallel=bool(overlaps)),
        attention="flash",
        zero=1,
        splits_sequence=True,
    )


def _nemo(row: MeasuredRow) -> Usage:
    return replace(_megatron_core(row), framework=NEMO)


def _of_2021(row: MeasuredRow) -> bool:
    """Published by Narayanan et al. 2021."""
    text = f"{row.framework} {row.source} {row.set}".lower()
    return bool(re.search(r"sc21|2021|2104\.04473", text))


def _deepspeed(row: MeasuredRow) -> Usage:
    zero = row.zero
    if zero is None:
        zero = 3 if "zero" in row.framework.lower() else 0
    features = DEEPSPEED_ZERO if zero == 3 else DEEPSPEED
    if zero <= 1 and row.precision.lower().startswith("bf16"):
        features = replace(features, gradient_bytes=4, reduced_bytes=4)
    if zero == 3 and _of_2021(row):
        features = replace(features, gathers_in_one_ring=True)
    attention = "scores" if row.arch.lower() in ("", "gpt") else "flash"
    return replace(
        _MEGATRON_USAGE, framework=features, zero=zero, attention=attention, interleaves=False
    )


def _galvatron(row: MeasuredRow) -> Usage:
    """Megatron-LM's layers with the fused attention of the flash-attention repository."""
    return replace(_MEGATRON_USAGE, framework=GALVATRON, attention="flash")


def _torchtitan(row: MeasuredRow) -> Usage:
    words = row.framework.lower().replace(" ", "").replace("-", "")
    features = replace(
        TORCHTITAN,
        pointwise="compiled" if "compile" in words else "eager",
        loss="compiled" if "compile" in words else "eager",
        overlaps_tensor_parallel="asynctp" in words,
    )
    return Usage(
        framework=features,
        zero=3,
        selective="operators",
        splits_sequence=True,
        interleaves=True,
        cuts_rank_batch=True,
    )


def _composer(row: MeasuredRow) -> Usage:
    pure = "pure" in f"{row.precision} {row.framework}".lower()
    features = replace(COMPOSER, reduced_bytes=2 if pure else 4)
    return Usage(framework=features, zero=3)


def _flash_attention(row: MeasuredRow) -> Usage:
    return Usage(framework=FLASH_ATTENTION, zero=1)


def _litgpt(row: MeasuredRow) -> Usage:
    """Several devices: FSDP with every block recomputed."""
    alone = (row.n_gpus or 1) == 1
    features = PURE_BF16 if "true" in row.precision.lower() else PYTORCH
    return Usage(
        framework=replace(features, name="litgpt"),
        zero=0 if alone else 3,
        recompute="none" if alone else "block",
    )


def _torchtune(row: MeasuredRow) -> Usage:
    compiled = "compile" in f"{row.framework} {row.notes}".lower()
    features = replace(PURE_BF16, name="torchtune", pointwise="compiled" if compiled else "eager")
    return Usage(framework=features, zero=3 if (row.n_gpus or 1) > 1 else 0)


def _pytorch(row: MeasuredRow) -> Usage:
    text = f"{row.framework} {row.precision}".lower()
    features = PURE_BF16 if re.search(r"pure|true", text) else PYTORCH
    sharded = bool(re.search(r"[fh]sdp|hybrid.?shard", text)) or row.zero == 3
    return Usage(
        framework=replace(
            features,
            pointwise="compiled" if "compile" in text else "eager",
            gathered_bytes=2 if sharded else features.gathered_bytes,
        ),
        zero=3 if sharded else 0,
        interleaves=True,
    )


_BUILDERS: tuple[tuple[str, Callable[[MeasuredRow], Usage]], ...] = (
    (r"nemo", _nemo),
    (r"deepspeed|gpt.?neox|eleutherai", _deepspeed),
    (r"mcore|megatron.?core", _megatron_core),
    (r"megatron|2104\.04473|2205\.05198", _megatron_lm),
    (r"galvatron", _galvatron),
    (r"torchtitan", _torchtitan),
    (r"composer|foundry|mosaic", _composer),
    (r"flash.?attention.*(repo|training)", _flash_attention),
    (r"lit.?gpt", _litgpt),
    (r"torchtune", _torchtune),
    (r"[fh]sdp|pytorch|ddp|torch|lightning|transformers|accelerate|hugging.?face", _pytorch),
)
