"""What Hugging Face models need for tracing: no caches, attention left causal, experts as one.

Layers that are dropped at random, and attention by kernels of their own, are refused by the names
that their configs have for them.

Under export, transformers materialises the causal mask and looks for packed sequences; in eager it
passes ``is_causal=True`` when there is no padding. Training batches here have neither padding nor
packing, so the eager path is the right one, and the one that flash attention runs.

Experts have several implementations there, chosen by the config; here they run as ``experts``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch import Tensor, nn

from autoplan.errors import UnsupportedModelError
from autoplan.trace.experts import ACTIVATIONS, EXPERTS
from autoplan.trace.refusals import RefusalError, Refuse

_LAYERDROP = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")
_TRACED_ATTENTION = (None, "eager", "sdpa")
_UNCHECKED = {"TRANSFORMERS_DISABLE_TORCH_CHECK": "1"}
"""Models do not look at the values of their inputs, such as how many tokens stand for images."""


def is_pretrained(model: nn.Module) -> bool:
    """Whether any part of the model is a transformers ``PreTrainedModel``."""
    transformers = sys.modules.get("transformers")
    if transformers is None:
        return False
    return any(isinstance(part, transformers.PreTrainedModel) for part in model.modules())


def disable_caches(model: nn.Module) -> None:
    """Sets ``use_cache`` to False in every config of the (cloned) model."""
    for part in model.modules():
        config = getattr(part, "config", None)
        if config is not None and getattr(config, "use_cache", False):
            config.use_cache = False


def refuse_options(model: nn.Module, refuse: Refuse) -> None:
    """Refuses what configs of a (cloned) model ask for that cannot be traced, and turns it off."""
    parts: list[Any] = [part for part in model.modules() if hasattr(part, "config")]
    for part in parts:
        if model.training:
            _refuse_layerdrop(part, refuse)
        kernels = getattr(part.config, "_attn_implementation", None)
        if kernels not in _TRACED_ATTENTION:
            what = f"attn_implementation={kernels!r} of {type(part).__name__} runs kernels that"
            what = f"{what} cannot be traced"
            cure = "set it to 'sdpa', which runs flash attention on devices that have it"
            refuse(RefusalError(what, "", cure))
            part.config._attn_implementation = "sdpa"


def _refuse_layerdrop(part: Any, refuse: Refuse) -> None:
    """Modules read the rate from their config, or have a copy of it."""
    if hasattr(part, "layerdrop"):
        part.layerdrop = 0.0
    for name in _LAYERDROP:
        rate = getattr(part.config, name, 0)
        if rate:
            what = f"{name}={rate} in the config of {type(part).__name__} drops whole layers at"
            what = f"{what} random, so every step is another program"
            refuse(RefusalError(what, "", f"set {name} to 0", "randomness"))
            setattr(part.config, name, 0.0)


@contextmanager
def causal_attention(model: nn.Module, inputs: Collection[str]) -> Iterator[None]:
    """Keeps the ``is_causal`` path of transformers models while they are exported.

    Raises:
        UnsupportedModelError: ``position_ids`` among the names of the inputs, which may say that
            several sequences are packed into one.
    """
    if not is_pretrained(model):
        yield
        return
    if "position_ids" in inputs:
        raise UnsupportedModelError(
            "position_ids of a transformers model may pack several sequences into one, which is "
            "not supported; leave them out of the inputs"
        )
    from transformers import masking_utils

    hooks = {
        "find_packed_sequence_indices": lambda *args, **kwargs: None,
        "is_torchdynamo_exporting": lambda: False,
        "padding_mask_function": _padding_of_samples,
    }
    with mock.patch.multiple(masking_utils, **hooks), mock.patch.dict(os.environ, _UNCHECKED):
        yield


def _padding_of_samples(mask: Tensor) -> Callable[..., Tensor]:
    """A mask of padding, ``[samples, keys]``, read by key alone.

    transformers reads it by the number of the sample too, which is another in a part of the batch.
    """

    def masked(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return mask[:, key.flatten()][:, None, None, :]

    return masked


@contextmanager
def whole_experts() -> Iterator[None]:
    """Runs the experts of transformers models as one operator, whatever implementation is set."""
    moe = sys.modules.get("transformers.integrations.moe")
    if moe is None:
        yield
        return
    ordinary = moe._default_apply_gate

    def forward(experts: Any, tokens: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        plain = type(experts)._apply_gate is ordinary and experts.has_gate
        kind = experts.config.hidden_act
        other = experts.has_bias or experts.is_transposed or experts.has_post_expert_norm
        if not plain or other or kind not in ACTIVATIONS:
            raise UnsupportedModelError(
                f"{type(experts).__name__} is not supported: experts are two products with a gate "
                f"between, without biases and norms, and one of {', '.join(ACTIVATIONS)}"
            )
        return EXPERTS(tokens, index, weight, experts.gate_up_proj, experts.down_proj, kind)

    moe.ALL_EXPERTS_FUNCTIONS.get_interface = lambda *_: forward
    try:
        yield
    finally:
        del moe.ALL_EXPERTS_FUNCTIONS.get_interface
