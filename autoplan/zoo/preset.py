"""A published model as data: the fields of its transformers config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NO_DROPOUT: Mapping[str, float] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """One published model.

    Attributes:
        model_type: transformers' name of the architecture.
        seq_len: default tokens per sample; None for models of images.
        dropout: rates by field of the config, all that are not zero; such models are planned with
            them, and run on one device only.
        config: the remaining fields of the transformers config.
    """

    model_type: str
    seq_len: int | None
    dropout: Mapping[str, float]
    config: Mapping[str, Any] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """All fields of the transformers config."""
        return {**self.config, **self.dropout}
