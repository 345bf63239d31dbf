"""Published runs by hand, for the tests of memory: frameworks, models, tables."""

from __future__ import annotations

from dataclasses import replace

from autoplan.validation.setups.setup import Framework, Setup
from autoplan.validation.setups.transformer import Transformer

GIB = 2**30

MEGATRON = Framework(
    name="Megatron-LM", weight_bytes=2, master_bytes=4, gradient_bytes=4, reduced_bytes=4,
    gathered_bytes=2, overlaps_reductions=False, overlaps_gathers=False,
    overlaps_tensor_parallel=False, overlaps_sends=False, fuses_weight_gradients=True,
    pointwise="fused", dropout=True, gathers_p2p=True,
)  # fmt: skip
DEEPSPEED = replace(
    MEGATRON, name="DeepSpeed", gradient_bytes=2, reduced_bytes=2, fuses_weight_gradients=False
)
FSDP2 = Framework(
    name="torchtitan", weight_bytes=4, master_bytes=0, gradient_bytes=4, reduced_bytes=4,
    gathered_bytes=2, overlaps_reductions=True, overlaps_gathers=True,
    overlaps_tensor_parallel=False, overlaps_sends=False, fuses_weight_gradients=False,
    pointwise="eager", dropout=False, gathers_p2p=False, fuses_optimizer=False,
)  # fmt: skip
COMPILED = replace(FSDP2, pointwise="compiled")
ASYNC_TP = replace(COMPILED, overlaps_tensor_parallel=True)
LITGPT = replace(
    FSDP2, name="litgpt", weight_bytes=2, gradient_bytes=2, reduced_bytes=2, gathered_bytes=2
)


def gpt(layers: int, hidden: int, heads: int) -> Transformer:
    return Transformer(
        layers=layers, hidden=hidden, heads=heads, kv_heads=heads, head_dim=hidden // heads,
        ffn=4 * hidden, vocab=51200, gated=False, rotary=False, biases=True, tied=True,
    )  # fmt: skip


def llama(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int = 128256
) -> Transformer:
    return Transformer(
        layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=hidden // heads,
        ffn=ffn, vocab=vocab, gated=True, rotary=True, biases=False, tied=False,
    )  # fmt: skip


LLAMA3_8B = llama(32, 4096, 32, 8, 14336)
LLAMA3_70B = llama(80, 8192, 64, 8, 28672)
LLAMA3_405B = llama(126, 16384, 128, 8, 53248)
LLAMA2_7B = llama(32, 4096, 32, 32, 11008, vocab=32000)
LLAMA2_13B = llama(40, 5120, 40, 40, 13824, vocab=32000)


def setup(model: Transformer, framework: Framework, **changes) -> Setup:
    """A run on one device, but for what is changed."""
    degrees = {"seq_len": 2048, "microbatch": 1, "microbatches": 1} | changes
    gpus = 1
    for axis in ("tp", "pp", "dp", "cp"):
        gpus *= degrees.get(axis, 1)
    return Setup(
        model=model, framework=framework, cluster="dgx-a100-80g", gpus=gpus,
        gpus_per_node=min(8, gpus), **degrees,
    )  # fmt: skip
