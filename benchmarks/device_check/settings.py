"""What is trained on one GPU: models and sizes, whole or with layers left out, in bf16."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One model, batch and way to train it.

    Attributes:
        fields: of the model's config, where it is not the published one.
        seq_len: None for models of images.
        samples: of a step, in one microbatch.
        compiled: under ``torch.compile``, whose step time is not predicted.
    """

    model: str
    samples: int
    seq_len: int | None = None
    fields: Mapping[str, int] = field(default_factory=dict)
    recompute: str = "none"
    compiled: bool = False

    @property
    def name(self) -> str:
        changed = "".join(f", {key} {value}" for key, value in self.fields.items())
        length = f" x {self.seq_len}" if self.seq_len else ""
        compiled = ", compiled" if self.compiled else ""
        again = ", recomputed" if self.recompute == "full" else ""
        return f"{self.model}{changed}, {self.samples}{length}{again}{compiled}"


_FOUR_LAYERS = {"num_hidden_layers": 4}

SETTINGS = (
    Setting(model="gpt2", samples=16, seq_len=1024),
    Setting(model="gpt2", samples=16, seq_len=1024, recompute="full"),
    Setting(model="gpt2", samples=16, seq_len=1024, compiled=True),
    Setting(model="gpt2-xl", samples=2, seq_len=1024),
    Setting(model="gpt2-xl", samples=8, seq_len=1024, recompute="full"),
    Setting(model="llama3.2-1b", samples=2, seq_len=4096),
    Setting(model="llama3.2-1b", samples=4, seq_len=4096, recompute="full"),
    Setting(model="llama3-8b", samples=2, seq_len=4096, fields=_FOUR_LAYERS),
    Setting(model="llama3-8b", samples=2, seq_len=8192, fields=_FOUR_LAYERS, recompute="full"),
    Setting(model="vit-l16", samples=64),
    Setting(model="vit-l16", samples=64, compiled=True),
    Setting(model="resnet152", samples=64),
)
LARGEST = (SETTINGS[0], SETTINGS[5])
"""Those of which the largest batch that fits is looked for."""
