"""Causal language models from transformers, built on the meta device and without the network."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from autoplan.errors import PlanError
from autoplan.zoo.subject import ModelUnderPlan

_LONGEST_DEFAULT = 8192
_EXAMPLE_BATCH = 2


def causal_lm(
    model_type: str, fields: Mapping[str, Any], seq_len: int | None, *, origin: str
) -> ModelUnderPlan:
    """Builds the causal LM of a transformers config, in train mode, with token inputs and labels.

    Args:
        model_type: transformers' name of the architecture.
        fields: the fields of its config.
        seq_len: tokens per sample; None for the config's maximum, at most 8192.
        origin: what the config came from, for messages.

    Raises:
        PlanError: unknown or unsuitable architecture, a config that transformers refuses, a
            sequence the model cannot take, or transformers missing.
    """
    require_transformers()
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if model_type not in CONFIG_MAPPING:
        raise PlanError(
            f"{origin}: transformers knows no architecture {model_type!r}; "
            "update transformers, or give a factory (pkg.mod:function)"
        )
    if model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise PlanError(
            f"{origin}: {model_type!r} is no causal language model; "
            "give a factory (pkg.mod:function) that builds it"
        )
    try:
        config = AutoConfig.for_model(model_type, **fields)
        length = _sequence_length(config, seq_len, origin)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    except PlanError:
        raise
    except Exception as error:
        raise PlanError(f"{origin}: transformers refuses this config: {one_line(error)}") from error
    model.train()
    if model.loss_type is None:
        model.loss_type = "ForCausalLM"
    return ModelUnderPlan(model=model, example_inputs=token_inputs(length), seq_len=length)


def token_inputs(seq_len: int) -> dict[str, Any]:
    """Token ids and labels ``[2, seq_len]`` on the meta device."""
    import torch

    shape = (_EXAMPLE_BATCH, seq_len)
    return {
        key: torch.empty(shape, dtype=torch.int64, device="meta") for key in ("input_ids", "labels")
    }


def require_transformers() -> None:
    """Raises ``PlanError`` with the cure when transformers is not installed."""
    if importlib.util.find_spec("transformers") is None:
        raise PlanError(
            "this model needs transformers, which is not installed; "
            "run pip install autoplan-torch[zoo]"
        )


def one_line(error: BaseException) -> str:
    """``TypeName: first line`` of an exception."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def _sequence_length(config: Any, seq_len: int | None, origin: str) -> int:
    longest = getattr(config, "max_position_embeddings", None)
    if seq_len is None:
        if longest is None:
            raise PlanError(
                f"{origin}: the config states no maximum length; give a sequence length"
            )
        return min(longest, _LONGEST_DEFAULT)
    if seq_len < 2:
        raise PlanError(f"{origin}: a sequence length of {seq_len} trains nothing; give 2 or more")
    if longest is not None and seq_len > longest:
        raise PlanError(
            f"{origin}: a sequence length of {seq_len} exceeds the model's maximum of {longest}; "
            f"give {longest} or less"
        )
    return seq_len
