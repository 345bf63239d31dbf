"""Presets as plain modules with their inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autoplan.zoo.lengths import sequence_length
from autoplan.zoo.subject import ModelUnderPlan
from autoplan.zoo.tasks import token_inputs

if TYPE_CHECKING:
    from torch import nn

_INPUTS = {"t5": ("input_ids", "decoder_input_ids", "labels")}
_DECODER_INPUTS = ("input_ids", "labels")
_LONGEST = ("n_positions", "max_position_embeddings")
_NAMES_ONLY = frozenset({"bos_token_id", "eos_token_id"})


def plain(
    model_type: str, fields: Mapping[str, Any], seq_len: int | None, *, origin: str
) -> ModelUnderPlan | None:
    """The language model of a transformers config, on the meta device and in train mode.

    Args:
        model_type: transformers' name of the architecture.
        fields: the fields of its config.
        seq_len: tokens per sample, of T5 on either side; None for the config's maximum, at most
            8192.
        origin: what the config came from, for messages.

    Returns:
        None where transformers has to build it: for other architectures, and other fields.

    Raises:
        PlanError: a sequence that the model cannot take.
    """
    sizes = {name: value for name, value in fields.items() if name not in _NAMES_ONLY}
    model = _module(model_type, sizes)
    if model is None:
        return None
    longest = next((sizes[name] for name in _LONGEST if name in sizes), None)
    length = sequence_length(seq_len, origin, longest=longest, stated=longest)
    inputs = token_inputs(_INPUTS.get(model_type, _DECODER_INPUTS), length)
    return ModelUnderPlan(model=model, example_inputs=inputs, seq_len=length)


def _module(model_type: str, fields: Mapping[str, Any]) -> nn.Module | None:
    if model_type == "gpt2":
        from autoplan.zoo.plain import gpt2

        return gpt2.build(fields)
    if model_type in ("llama", "mistral", "qwen2", "qwen3"):
        from autoplan.zoo.plain import llama

        return llama.build(model_type, fields)
    if model_type == "t5":
        from autoplan.zoo.plain import t5

        return t5.build(fields)
    return None
