"""What adapters add to a layer's passes, beside the frozen products (``learned_weights``).

- LoRA: two low-rank products beside those of queries and values, added to their results.
- LLaMA-Adapter: queries attend to a prompt whose keys and values the frozen product makes; gates
  add the result. It is priced in every layer, though the first two have none.
- Its version 2 also scales and shifts the output of every product, in a kernel each.
"""

from __future__ import annotations

from autoplan.validation.ranks.learned_weights import ADAPTER_PROMPT, LORA_RANK
from autoplan.validation.ranks.sizes import local_heads
from autoplan.validation.setups.setup import Setup
from autoplan.validation.step.attention_core import activation_dtype
from autoplan.validation.step.linear import Linear
from autoplan.validation.step.passes import ACTIVATION_BYTES, Part, Pass, streaming
from cost_models.work import FlashAttention

SUM_BYTES = 3 * ACTIVATION_BYTES


def adapted(product: Linear) -> Part:
    """A product of the model, with what is done to its output."""
    if product.setup.tuning != "adapter-v2":
        return product.part()
    elements = product.copies * product.tokens * product.outputs
    scaled = streaming(elements, 4 * ACTIVATION_BYTES, 2)
    back = streaming(elements, 7 * ACTIVATION_BYTES, 4)
    return product.part() + Part(forward=Pass(kernels=(scaled,)), inputs=Pass(kernels=(back,)))


def adapter(setup: Setup) -> Part:
    """What an adapter computes beside one layer's attention for one microbatch on one rank."""
    if setup.tuning == "all":
        return Part()
    return _low_rank(setup) if setup.tuning == "lora" else _prompt(setup)


def _low_rank(setup: Setup) -> Part:
    """The products down are whole on every tensor-parallel rank, those up are split."""
    part = Part()
    heads, kv_heads = local_heads(setup)
    for width in (heads * setup.model.head_dim, kv_heads * setup.model.head_dim):
        down = Linear(setup, setup.tokens, setup.model.hidden, LORA_RANK, adapter=True)
        up = Linear(setup, setup.tokens, LORA_RANK, width, adapter=True)
        added = Part(
            forward=Pass(kernels=(streaming(setup.tokens * width, SUM_BYTES),)),
            inputs=Pass(kernels=(streaming(setup.tokens * setup.model.hidden, SUM_BYTES),)),
        )
        part += down.part() + up.part() + added
    return part


def _prompt(setup: Setup) -> Part:
    heads, kv_heads = local_heads(setup)
    width, kv_width = heads * setup.model.head_dim, kv_heads * setup.model.head_dim
    joint = Linear(setup, ADAPTER_PROMPT, setup.model.hidden, width + 2 * kv_width)

    def attended(backward: bool) -> Pass:
        kernel = FlashAttention(
            batch=setup.microbatch,
            heads=heads,
            kv_heads=kv_heads,
            queries=setup.seq_len // setup.cp,
            keys=ADAPTER_PROMPT,
            head_dim=setup.model.head_dim,
            value_dim=setup.model.head_dim,
            dtype=activation_dtype(setup),
            causal=False,
            backward=backward,
            generation=setup.framework.attention_generation,
        )
        return Pass(kernels=(kernel, streaming(setup.tokens * width, SUM_BYTES, 2)))

    return joint.part() + Part(forward=attended(False), inputs=attended(True))
