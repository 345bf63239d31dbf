"""Presets of written models, on the meta device, with their inputs."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from autoplan.errors import PlanError
from autoplan.zoo.lengths import sequence_length
from autoplan.zoo.subject import ModelUnderPlan
from autoplan.zoo.tasks import token_inputs

_TOKENS = {
    "lstm": ("input_ids", "labels"),
    "pangu": ("input_ids", "labels"),
    "switch": ("input_ids", "decoder_input_ids", "labels"),
}
RECOMMENDERS = ("dlrm", "mmoe")


def written(
    model_type: str, fields: Mapping[str, Any], seq_len: int | None, *, origin: str
) -> ModelUnderPlan | None:
    """The model of these sizes in train mode; None where it is not written here.

    Args:
        model_type: the module of this package that has it.
        fields: the fields of its ``Sizes``.
        seq_len: tokens per sample of a language model, None for its ``positions``.
        origin: what the model came from, for messages.

    Raises:
        PlanError: a sequence that the model cannot take.
    """
    if model_type not in (*_TOKENS, *RECOMMENDERS):
        return None
    import torch

    module = importlib.import_module(f"autoplan.zoo.written.{model_type}")
    sizes = module.Sizes(**fields)
    with torch.device("meta"):
        model = module.Model(sizes)
    if model_type in RECOMMENDERS:
        if seq_len is not None:
            raise PlanError(f"{origin}: the model takes no sequence length; leave it out")
        return ModelUnderPlan(model=model, example_inputs=module.inputs(sizes))
    length = sequence_length(seq_len, origin, longest=sizes.longest, stated=sizes.positions)
    inputs = token_inputs(_TOKENS[model_type], length)
    return ModelUnderPlan(model=model, example_inputs=inputs, seq_len=length)
