"""What the training frameworks of published measurements do, and their usual choices.

Features are those of documentation and source, never of one paper's figures:

- Megatron-LM of 2021 (Narayanan et al.; ``examples/sc21``): fp16 gradients, summed in fp16, by
  torch's DDP (overlapped) without a pipeline and by its own (not overlapped) with one.
- Megatron-LM of 2022 (Korthikanti et al.): ``main_grad`` in fp32, added to by the products of the
  weights' gradients, reduced after the last backward.
- Megatron-Core (r0.8 and Megatron-LM since): distributed optimizer, overlapped reductions, gathers
  and pipeline messages. ``examples/llama`` with 8-bit products gathers 8-bit weights and reduces
  in bf16.
- NeMo 24: Apex' distributed Adam with bf16 gradients (``grad_sync_dtype: bf16``) and the 16 bits
  that a bf16 weight lacks of its fp32 master (``store_param_remainders``); tensor-parallel messages
  overlap (``ub_tp_comm_overlap`` in the launcher's Llama 3 and Nemotron configs).
- DeepSpeed's fp16 optimizer reduces fp16 gradients at the end of accumulation, its bf16 optimizer
  (up to stage 1) fp32 ones; ZeRO 3 gathers 16-bit weights and overlaps (``overlap_comm`` is on for
  stage 3).
- torchtitan: FSDP2 with fp32 shards, bf16 gathers, fp32 reductions; foreach AdamW.
- Composer with FSDP1: ``DEFAULT`` gathers in 16 bits and reduces in 32, ``PURE`` both in 16; its
  models pinned FlashAttention 1.0 (llm-foundry's ffn layers name 1.0.6).
- The flash-attention repository's ``training``: Lightning with autocast,
  ``ZeroRedundancyOptimizer``, the first FlashAttention.
- litgpt and torchtune: everything in bf16.

Where the name is missing, the source counts (a repository, or a paper's number). A name that is not
known here is taken for PyTorch in eager mode with autocast.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from autoplan.validation.rows import MeasuredRow
from autoplan.validation.setup import AttentionKernel, Framework, Recompute


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """A framework, and what it does where a row leaves the choice open.

    Attributes:
        recompute, zero, attention: the defaults.
        selective: what its selective recompute runs again.
        splits_sequence: sequence parallelism goes with tensor parallelism.
        interleaves: pipelines run one layer a model chunk.
        cuts_rank_batch: with a pipeline, the stated microbatch is the rank's batch, cut into as
            many microbatches as there are stages (torchtitan until 2025).
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


_MEGATRON_2022 = Framework(
    name="Megatron-LM 2022",
    weight_bytes=2,
    master_bytes=4,
    gradient_bytes=4,
    reduced_bytes=4,
    gathered_bytes=2,
    overlaps_reductions=False,
    overlaps_gathers=False,
    overlaps_tensor_parallel=False,
    overlaps_sends=False,
    fuses_weight_gradients=True,
    pointwise="fused",
    dropout=True,
    gathers_p2p=True,
    host_s=57e-6,
)
_MEGATRON_2021 = replace(
    _MEGATRON_2022,
    name="Megatron-LM 2021",
    gradient_bytes=2,
    reduced_bytes=2,
    fuses_weight_gradients=False,
    overlaps_input_gradients=False,
)
_MEGATRON_CORE = replace(
    _MEGATRON_2022,
    name="Megatron-Core",
    host_s=20e-6,
    attention_generation=3,
    overlaps_reductions=True,
    overlaps_gathers=True,
    overlaps_sends=True,
)
_NEMO = replace(
    _MEGATRON_CORE,
    name="NeMo",
    master_bytes=2,
    gradient_bytes=2,
    reduced_bytes=2,
    overlaps_tensor_parallel=True,
)
_DEEPSPEED = replace(_MEGATRON_2021, name="Megatron-DeepSpeed")
_DEEPSPEED_ZERO = replace(
    _DEEPSPEED, name="DeepSpeed ZeRO", overlaps_reductions=True, overlaps_gathers=True
)
_PYTORCH = Framework(
    name="PyTorch",
    weight_bytes=4,
    master_bytes=0,
    gradient_bytes=4,
    reduced_bytes=4,
    gathered_bytes=4,
    overlaps_reductions=True,
    overlaps_gathers=True,
    overlaps_tensor_parallel=False,
    overlaps_sends=False,
    fuses_weight_gradients=False,
    pointwise="eager",
    dropout=False,
    gathers_p2p=False,
    stops_recompute_early=True,
    fuses_optimizer=False,
)
_TORCHTITAN = replace(_PYTORCH, name="torchtitan", gathered_bytes=2)
_COMPOSER = replace(_PYTORCH, name="Composer FSDP", gathered_bytes=2, attention_generation=1)
_FLASH_ATTENTION = replace(
    _PYTORCH,
    name="flash-attention repository",
    pointwise="fused",
    dropout=True,
    attention_generation=1,
)
_PURE_BF16 = replace(
    _PYTORCH, name="PyTorch in bf16", weight_bytes=2, gradient_bytes=2, reduced_bytes=2,
    gathered_bytes=2,
)  # fmt: skip
_MEGATRON_USAGE = Usage(framework=_MEGATRON_2022, attention="scores", vocab_multiple=128)


def usage_of(row: MeasuredRow) -> Usage:
    """The framework that a row names, with the features that the row's words switch on."""
    name = (row.framework or row.source).lower()
    for pattern, build in _BUILDERS:
        if re.search(pattern, name):
            return build(row)
    return replace(_pytorch(row), known=False)


def _megatron_lm(row: MeasuredRow) -> Usage:
    """One of three ages of Megatron-LM, by the source's year and the precision and device used."""
    text = f"{row.framework} {row.source} {row.set}".lower()
    if re.search(r"core|h100|h200|b200|b300", f"{text} {row.gpu.lower()}") or _eight_bit(row):
        return _megatron_core(row)
    if re.search(r"sc21|2021|2104\.04473", text):
        features = replace(_MEGATRON_2021, overlaps_reductions=(row.pp or 1) == 1)
        return replace(_MEGATRON_USAGE, framework=features)
    return _MEGATRON_USAGE


def _megatron_core(row: MeasuredRow) -> Usage:
    features = _MEGATRON_CORE
    if _eight_bit(row):
        features = replace(features, gradient_bytes=2, reduced_bytes=2, gathered_bytes=1)
    overlaps = re.search(r"tp.?comm", f"{row.framework} {row.notes}".lower())
    return replace(
        _MEGATRON_USAGE,
        framework=replace(features, overlaps_tensor_parallel=bool(overlaps)),
        attention="flash",
        zero=1,
        splits_sequence=True,
        interleaves=True,
    )


def _nemo(row: MeasuredRow) -> Usage:
    return replace(_megatron_core(row), framework=_NEMO)


def _deepspeed(row: MeasuredRow) -> Usage:
    zero = row.zero
    if zero is None:
        zero = 3 if "zero" in row.framework.lower() else 0
    features = _DEEPSPEED_ZERO if zero == 3 else _DEEPSPEED
    if zero <= 1 and row.precision.lower().startswith("bf16"):
        features = replace(features, gradient_bytes=4, reduced_bytes=4)
    attention = "scores" if row.arch.lower() in ("", "gpt") else "flash"
    return replace(_MEGATRON_USAGE, framework=features, zero=zero, attention=attention)


def _torchtitan(row: MeasuredRow) -> Usage:
    words = row.framework.lower().replace(" ", "").replace("-", "")
    features = replace(
        _TORCHTITAN,
        pointwise="compiled" if "compile" in words else "eager",
        overlaps_tensor_parallel="asynctp" in words,
    )
    return Usage(
        framework=features,
        zero=3,
        selective="operators",
        splits_sequence=True,
        cuts_rank_batch=True,
    )


def _composer(row: MeasuredRow) -> Usage:
    pure = "pure" in f"{row.precision} {row.framework}".lower()
    features = replace(_COMPOSER, reduced_bytes=2 if pure else 4)
    return Usage(framework=features, zero=3)


def _flash_attention(row: MeasuredRow) -> Usage:
    return Usage(framework=_FLASH_ATTENTION, zero=1)


def _litgpt(row: MeasuredRow) -> Usage:
    """Several devices: FSDP with every block recomputed."""
    alone = (row.n_gpus or 1) == 1
    features = _PURE_BF16 if "true" in row.precision.lower() else _PYTORCH
    return Usage(
        framework=replace(features, name="litgpt"),
        zero=0 if alone else 3,
        recompute="none" if alone else "block",
    )


def _torchtune(row: MeasuredRow) -> Usage:
    compiled = "compile" in f"{row.framework} {row.notes}".lower()
    features = replace(_PURE_BF16, name="torchtune", pointwise="compiled" if compiled else "eager")
    return Usage(framework=features, zero=3 if (row.n_gpus or 1) > 1 else 0)


def _pytorch(row: MeasuredRow) -> Usage:
    text = f"{row.framework} {row.precision}".lower()
    features = _PURE_BF16 if re.search(r"pure|true", text) else _PYTORCH
    sharded = "fsdp" in text or row.zero == 3
    return Usage(
        framework=replace(
            features,
            pointwise="compiled" if "compile" in text else "eager",
            gathered_bytes=2 if sharded else features.gathered_bytes,
        ),
        zero=3 if sharded else 0,
    )


def _eight_bit(row: MeasuredRow) -> bool:
    return bool(re.search(r"(?<![a-z])(fp8|float8)", row.precision.lower()))


_BUILDERS: tuple[tuple[str, Callable[[MeasuredRow], Usage]], ...] = (
    (r"nemo", _nemo),
    (r"deepspeed|gpt.?neox|eleutherai", _deepspeed),
    (r"mcore|megatron.?core", _megatron_core),
    (r"megatron|2104\.04473|2205\.05198", _megatron_lm),
    (r"torchtitan", _torchtitan),
    (r"composer|foundry|mosaic", _composer),
    (r"flash.?attention.*(repo|training)", _flash_attention),
    (r"lit.?gpt", _litgpt),
    (r"torchtune", _torchtune),
    (r"fsdp|pytorch|ddp|torch|lightning|transformers|accelerate|hugging.?face", _pytorch),
)
