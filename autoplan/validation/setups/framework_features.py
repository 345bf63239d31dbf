"""What the training frameworks of published measurements do.

Features are those of documentation and source, never of one paper's figures:

- Megatron-LM of 2021 (Narayanan et al.; ``examples/sc21``): fp16 gradients, summed in fp16, by
  torch's DDP (overlapped) without a pipeline and by its own (not overlapped) with one.
- Megatron-LM of 2022 (Korthikanti et al.): ``main_grad`` in fp32, added to by the products of the
  weights' gradients, reduced after the last backward.
- Megatron-Core (r0.8 and Megatron-LM since): distributed optimizer, overlapped reductions, gathers
  and pipeline messages. ``examples/llama`` with 8-bit products gathers 8-bit weights, reduces in
  bf16 and fuses the loss (``--cross-entropy-loss-fusion``); its README refers to NeMo's performance
  scripts, which overlap tensor-parallel messages.
- NeMo 24: Apex' distributed Adam with bf16 gradients (``grad_sync_dtype: bf16``) and the 16 bits
  that a bf16 weight lacks of its fp32 master (``store_param_remainders``); tensor-parallel messages
  overlap (``ub_tp_comm_overlap`` in the launcher's Llama 3 and Nemotron configs).
- DeepSpeed's fp16 optimizer reduces fp16 gradients at the end of accumulation, its bf16 optimizer
  (up to stage 1) fp32 ones; ZeRO 3 gathers 16-bit weights and overlaps (``overlap_comm`` is on for
  stage 3).
- Galvatron runs Megatron-LM's layers with FlashAttention (``galvatron/core/runtime``).
- torchtitan: FSDP2 with fp32 shards, bf16 gathers, fp32 reductions; foreach AdamW. Attention over
  ``cp`` reaches 0.62 of its rate (fitted on torchtitan's runs at cp 4 and 8, of 2024).
- Composer with FSDP1: ``DEFAULT`` gathers in 16 bits and reduces in 32, ``PURE`` both in 16; its
  models have ``low_precision_layernorm`` and ``fused_crossentropy`` by default, whose passes over
  the logits the training metrics (``use_train_metrics``) double to those of eager mode, and pinned
  FlashAttention 1.0 (llm-foundry's ffn layers name 1.0.6).
- The flash-attention repository's ``training``: Lightning with autocast,
  ``ZeroRedundancyOptimizer``, the first FlashAttention.
- litgpt and torchtune: everything in bf16.
"""

from __future__ import annotations

from dataclasses import replace

from autoplan.validation.setups.setup import Framework

MEGATRON_2022 = Framework(
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
    host_s=55e-6,
)
MEGATRON_2021 = replace(
    MEGATRON_2022,
    name="Megatron-LM 2021",
    gradient_bytes=2,
    reduced_bytes=2,
    fuses_weight_gradients=False,
    overlaps_input_gradients=False,
)
MEGATRON_CORE = replace(
    MEGATRON_2022,
    name="Megatron-Core",
    host_s=20e-6,
    attention_generation=3,
    overlaps_reductions=True,
    overlaps_gathers=True,
    overlaps_sends=True,
)
NEMO = replace(
    MEGATRON_CORE,
    name="NeMo",
    master_bytes=2,
    gradient_bytes=2,
    reduced_bytes=2,
    overlaps_tensor_parallel=True,
)
GALVATRON = replace(MEGATRON_2022, name="Galvatron")
DEEPSPEED = replace(MEGATRON_2021, name="Megatron-DeepSpeed")
DEEPSPEED_ZERO = replace(
    DEEPSPEED, name="DeepSpeed ZeRO", overlaps_reductions=True, overlaps_gathers=True
)
PYTORCH = Framework(
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
    loss="eager",
    fuses_optimizer=False,
)
TORCHTITAN = replace(PYTORCH, name="torchtitan", gathered_bytes=2, split_attention_share=0.62)
COMPOSER = replace(
    PYTORCH,
    name="Composer FSDP",
    gathered_bytes=2,
    pointwise="fused",
    attention_generation=1,
)
FLASH_ATTENTION = replace(
    PYTORCH,
    name="flash-attention repository",
    pointwise="fused",
    dropout=True,
    attention_generation=1,
    loss="fused",
)
PURE_BF16 = replace(
    PYTORCH, name="PyTorch in bf16", weight_bytes=2, gradient_bytes=2, reduced_bytes=2,
    gathered_bytes=2,
)  # fmt: skip
