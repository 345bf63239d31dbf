"""Models of transformers, built from their configs on the meta device and without the network."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from autoplan.errors import PlanError
from autoplan.zoo.lengths import sequence_length
from autoplan.zoo.subject import ModelUnderPlan
from autoplan.zoo.tasks import Task, task_of, token_inputs

_ONE_CLASS = "single_label_classification"


def pretrained(
    model_type: str, fields: Mapping[str, Any], seq_len: int | None, *, origin: str
) -> ModelUnderPlan:
    """Builds the model of a transformers config for its task, in train mode, with its inputs.

    Args:
        model_type: transformers' name of the architecture.
        fields: the fields of its config.
        seq_len: tokens per sample (of a sequence-to-sequence model, on either side); None for the
            config's maximum, at most 8192, and for models of images.
        origin: what the config came from, for messages.

    Raises:
        PlanError: unknown or unsuitable architecture, a config that transformers refuses, a
            sequence the model cannot take, or transformers missing.
    """
    require_transformers()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        raise PlanError(
            f"{origin}: transformers knows no architecture {model_type!r}; "
            "update transformers, or give a factory (pkg.mod:function)"
        )
    task = task_of(model_type, fields.get("architectures"), origin)
    try:
        return _build(model_type, fields, seq_len, task, origin)
    except PlanError:
        raise
    except Exception as error:
        raise PlanError(f"{origin}: transformers refuses this config: {one_line(error)}") from error


def _build(
    model_type: str, fields: Mapping[str, Any], seq_len: int | None, task: Task, origin: str
) -> ModelUnderPlan:
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(model_type, **fields)
    if not task.token_inputs:
        _check_images(config, seq_len, task, origin)
    with torch.device("meta"):
        model = getattr(transformers, task.auto_class).from_config(config)
    model.train()
    if model.loss_type is None:
        model.loss_type = task.loss_type
    inputs = task.other_inputs(config) if task.other_inputs else {}
    if not task.token_inputs:
        return ModelUnderPlan(model=model, example_inputs=inputs)
    longest = _longest(model)
    stated = longest or getattr(config, "n_positions", None)
    length = sequence_length(seq_len, origin, longest=longest, stated=stated)
    inputs |= token_inputs(task.token_inputs, length)
    return ModelUnderPlan(model=model, example_inputs=inputs, seq_len=length)


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


def _check_images(config: Any, seq_len: int | None, task: Task, origin: str) -> None:
    """An image has one class each; transformers would guess that from the first labels it sees."""
    if seq_len is not None:
        raise PlanError(
            f"{origin}: the model is an {task.name} and takes no sequence length; leave it out"
        )
    if config.problem_type not in (None, _ONE_CLASS):
        raise PlanError(
            f"{origin}: the problem type {config.problem_type!r} has no inputs here; "
            "give a factory (pkg.mod:function) that returns the model and its inputs"
        )
    config.problem_type = _ONE_CLASS


def _longest(model: Any) -> int | None:
    """Tokens that the model can take; None where positions are relative.

    Tables of positions that start after the number of the padding token, as RoBERTa's, hold that
    many fewer.
    """
    config = model.config
    longest = getattr(config, "max_position_embeddings", None)
    if longest is None:
        longest = getattr(config, "max_target_positions", None)
    for part in model.modules():
        if longest is not None and hasattr(part, "create_position_ids_from_input_ids"):
            return longest - part.padding_idx - 1
    return longest
