"""Which kernels and messages of the forward run a second time within the backward.

``block`` keeps a layer's input and runs the layer again; where the framework stops early, except
for its last product, the message after it and the residual: their results are not needed.
``attention`` runs the attention core again (Korthikanti et al. 2022, section 5). ``operators``
keeps attention and every second product (torchtitan's selective policy) and runs the rest again.
"""

from __future__ import annotations

from dataclasses import replace

from autoplan.validation.setups.setup import Setup
from autoplan.validation.step.attention_core import attention_core
from autoplan.validation.step.passes import NOTHING, Part, Pass
from cost_models.work import FlashAttention, Gemm


def with_recompute(setup: Setup, layer: Part) -> Part:
    """The layer with what it runs again."""
    return replace(layer, again=_again(setup, layer.forward))


def _again(setup: Setup, forward: Pass) -> Pass:
    if setup.recompute == "block":
        return _up_to_last_product(forward) if setup.framework.stops_recompute_early else forward
    if setup.recompute == "attention":
        return attention_core(setup).forward if setup.attention == "scores" else NOTHING
    if setup.recompute == "operators":
        return _all_but_saved(forward)
    return NOTHING


def _up_to_last_product(forward: Pass) -> Pass:
    products = [index for index, each in enumerate(forward.kernels) if isinstance(each, Gemm)]
    messages = forward.messages
    if messages and messages[-1].axis != "cp":
        messages = messages[:-1]
    return Pass(kernels=forward.kernels[: products[-1]], messages=messages)


def _all_but_saved(forward: Pass) -> Pass:
    kernels = []
    products = 0
    for kernel in forward.kernels:
        if isinstance(kernel, Gemm):
            products += 1
            if products % 2 == 0:
                continue
        if not isinstance(kernel, FlashAttention):
            kernels.append(kernel)
    return Pass(kernels=tuple(kernels))
