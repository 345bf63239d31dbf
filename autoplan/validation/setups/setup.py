"""How a published run was set up: the model, the mesh, and what the framework is known to do.

A ``Framework`` holds features that its documentation or source states, never a fitted figure of
one paper. What a row of measurements leaves open takes the framework's default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autoplan.validation.setups.transformer import Transformer
from cost_models.schedules import ScheduleName

Recompute = Literal["none", "attention", "operators", "block"]
AttentionKernel = Literal["flash", "scores"]
Pointwise = Literal["eager", "fused", "compiled"]
Loss = Literal["split", "eager", "compiled", "fused"]
Tuning = Literal["all", "lora", "adapter", "adapter-v2"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Framework:
    """What a framework does for every model.

    Attributes:
        weight_bytes: of a weight that compute reads, kept through the step.
        master_bytes: of the copy that the optimizer updates; 0 where it is the weight itself.
        gradient_bytes: of a gradient kept between microbatches.
        reduced_bytes: of a gradient sent between data-parallel ranks.
        gathered_bytes: of a weight sent in a gather (ZeRO).
        overlaps_reductions, overlaps_gathers: data-parallel messages run beside compute.
        overlaps_tensor_parallel: tensor-parallel messages run beside the products they belong to.
        overlaps_input_gradients: sums of input gradients over ``tp`` run beside the product of the
            weights' gradients (Megatron-LM since the end of 2021).
        overlaps_sends: pipeline messages run beside compute.
        fuses_weight_gradients: products of weight gradients add to the kept gradient themselves.
        pointwise: how memory-bound operators run: each its own kernel, hand-written fusions
            (bias and activation; bias, dropout and residual; masked softmax), or a compiler's.
        dropout: attention and hidden dropout are on in pretraining.
        gathers_p2p: pipeline messages are split over the tensor-parallel ranks and gathered again.
        stops_recompute_early: a recomputed block ends with the last tensor that its backward needs,
            before its last product (torch.utils.checkpoint, not reentrant, since 2.1).
        gathers_in_one_ring: ZeRO 3 sends tensor after tensor around one ring of all ranks, between
            the layers (DeepSpeed of 2021).
        loss: how cross-entropy runs: over logits split on ``tp`` (Megatron), operator by operator,
            compiled, or as one kernel each way.
        fuses_optimizer: its step is one kernel over many weights, not PyTorch's multi-tensor ones.
        attention_generation: of its fused attention (FlashAttention 1, 2 or 3).
        split_attention_share: rate of fused attention over a sequence split on ``cp``, of that over
            a whole one.
        ring_step_s, ring_adapters: of that ring: seconds of a step, rate in adapters' peaks.
        host_s: what the host needs to start one kernel, the framework's own Python included.
    """

    name: str
    weight_bytes: int
    master_bytes: int
    gradient_bytes: int
    reduced_bytes: int
    gathered_bytes: int
    overlaps_reductions: bool
    overlaps_gathers: bool
    overlaps_tensor_parallel: bool
    overlaps_sends: bool
    fuses_weight_gradients: bool
    pointwise: Pointwise
    dropout: bool
    gathers_p2p: bool
    overlaps_input_gradients: bool = True
    stops_recompute_early: bool = False
    gathers_in_one_ring: bool = False
    loss: Loss = "split"
    fuses_optimizer: bool = True
    attention_generation: int = 2
    split_attention_share: float = 1.0
    ring_step_s: float = 15e-6
    ring_adapters: float = 1.6
    host_s: float = 20e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """One run.

    Attributes:
        device, cluster: names in ``hardware_profiles``.
        microbatch: sequences of one microbatch of one data-parallel rank.
        microbatches: of one rank in one step.
        virtual_stages: model chunks of one pipeline rank (interleaving).
        sequence_parallel: norms and residuals are split over ``tp`` along the sequence.
        recompute: ``attention`` (the attention core: Megatron's selective), ``operators`` (every
            second product and all cheap operators: torchtitan's selective), ``block`` (full).
        attention: ``scores`` writes them to memory (masked softmax between two products).
        compute_dtype: of the products of linear layers.
        tuning: which weights learn.
        quantised: frozen weights are held in 4 bits.
        document_len: tokens that attend to each other where several documents are packed into one
            sequence; None: the whole sequence.
        layer_only: the time of one layer, no embedding, head or optimizer;
            ``forward_only``: without its backward.
        without_ends: memory of the layers alone, as analytic figures count it: no embedding, head
            or loss.
        replicas: groups of data-parallel (and context-parallel) ranks that share states each, with
            ZeRO 1 to 3: hybrid sharding. A divisor of ``dp * cp``; the ranks of a group are
            neighbours.
    """

    model: Transformer
    framework: Framework
    cluster: str
    gpus: int
    gpus_per_node: int
    seq_len: int
    microbatch: int
    microbatches: int
    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    virtual_stages: int = 1
    schedule: ScheduleName = "1f1b"
    zero: int = 0
    sequence_parallel: bool = False
    recompute: Recompute = "none"
    attention: AttentionKernel = "flash"
    compute_dtype: str = "bfloat16"
    optimizer: str = "adamw"
    tuning: Tuning = "all"
    quantised: bool = False
    document_len: int | None = None
    layer_only: bool = False
    forward_only: bool = False
    without_ends: bool = False
    replicas: int = 1

    @property
    def tokens(self) -> int:
        """Of one microbatch on one rank, the sequence split over ``cp``."""
        return self.microbatch * self.seq_len // self.cp

    @property
    def global_batch(self) -> int:
        return self.microbatch * self.microbatches * self.dp
