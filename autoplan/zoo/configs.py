"""Hugging Face ``config.json`` files as models to plan for.

The file is data: size-limited, plain JSON, and never a reason to run code that comes with it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from autoplan.errors import PlanError
from autoplan.zoo.pretrained import pretrained
from autoplan.zoo.subject import ModelUnderPlan

LARGEST_FILE_BYTES = 1 << 20
_OF_A_RUN = ("dtype", "torch_dtype", "attn_implementation", "_attn_implementation")


def from_config(path: str | Path, seq_len: int | None = None) -> ModelUnderPlan:
    """Builds the model of a ``config.json`` for its task, on the meta device and in train mode.

    Args:
        path: the file.
        seq_len: tokens per sample; None for the config's maximum, at most 8192, and for images.

    Raises:
        PlanError: an unreadable or malformed file, an unknown architecture or task, a quantized
            model, or a sequence the model cannot take.
    """
    model_type, fields = read_config(path)
    return pretrained(model_type, fields, seq_len, origin=str(path))


def read_config(path: str | Path) -> tuple[str, dict[str, Any]]:
    """The model type of a ``config.json``, and its other fields that are of the model.

    Raises:
        PlanError: an unreadable or malformed file, or a quantized model.
    """
    fields = _read(Path(path))
    model_type = fields.pop("model_type", None)
    if not isinstance(model_type, str):
        raise PlanError(f"{path} has no model_type; give the config.json of a transformers model")
    if fields.get("quantization_config"):
        raise PlanError(f"{path} is the config of a quantized model; give the unquantized one")
    for name in _OF_A_RUN:
        fields.pop(name, None)
    return model_type, fields


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise PlanError(f"cannot read {path}: {error.strerror}") from error
    if len(text) > LARGEST_FILE_BYTES:
        raise PlanError(f"{path} is larger than {LARGEST_FILE_BYTES} bytes; is it a config.json?")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise PlanError(f"{path} holds a {type(fields).__name__} where an object is expected")
    return fields
