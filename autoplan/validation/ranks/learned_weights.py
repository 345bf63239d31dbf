"""How many weights learn under each kind of fine-tuning, with the frameworks' default sizes.

- LoRA (Hu et al. 2021): rank 8 on queries and values.
- LLaMA-Adapter (Zhang et al. 2023): a prompt of 10 positions and one gate a head in every layer
  but the first two; version 2 adds a scale and a shift to the outputs of every product, the head's
  too, and lets the norms learn.
"""

from __future__ import annotations

from autoplan.validation.setups.setup import Setup

LORA_RANK = 8
ADAPTER_PROMPT = 10
ADAPTER_FIRST_LAYER = 2


def learned_weights(setup: Setup) -> int:
    """Weights of the whole model that have gradients and optimizer state."""
    model = setup.model
    if setup.tuning == "all":
        return model.parameters()
    if setup.tuning == "lora":
        pairs = 2 * model.hidden + model.attention_width + model.kv_width
        return model.layers * LORA_RANK * pairs
    each = ADAPTER_PROMPT * model.hidden + model.heads
    prompts = max(0, model.layers - ADAPTER_FIRST_LAYER) * each
    return prompts + (_scales_and_norms(setup) if setup.tuning == "adapter-v2" else 0)


def frozen_layers(setup: Setup) -> int:
    """First layers that have no backward, since nothing in or before them learns."""
    return ADAPTER_FIRST_LAYER if setup.tuning == "adapter" else 0


def _scales_and_norms(setup: Setup) -> int:
    model = setup.model
    into = model.ffn * (2 if model.gated else 1)
    outputs = model.attention_width + 2 * model.kv_width + into + 2 * model.hidden
    norms = (2 * model.layers + 1) * model.hidden * (2 if model.biases else 1)
    return 2 * (model.layers * outputs + model.vocab) + norms
