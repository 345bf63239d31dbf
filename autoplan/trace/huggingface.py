"""What Hugging Face models need for tracing: no caches, and attention left causal.

Under export, transformers materialises the causal mask and looks for packed sequences; in eager it
passes ``is_causal=True`` when there is no padding. Training batches here have neither padding nor
packing, so the eager path is the right one, and the one that flash attention runs.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from torch import nn

from autoplan.errors import UnsupportedModelError


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
    }
    kept = {name: getattr(masking_utils, name) for name in hooks}
    try:
        for name, hook in hooks.items():
            setattr(masking_utils, name, hook)
        yield
    finally:
        for name, hook in kept.items():
            setattr(masking_utils, name, hook)
