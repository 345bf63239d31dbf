"""All published models by name, built on the meta device from fields of transformers configs."""

from __future__ import annotations

from collections.abc import Mapping

from autoplan.errors import PlanError
from autoplan.zoo.decoders import DECODERS
from autoplan.zoo.encoders import ENCODERS
from autoplan.zoo.experts import EXPERTS
from autoplan.zoo.images import IMAGES
from autoplan.zoo.others import OTHERS
from autoplan.zoo.plain import plain
from autoplan.zoo.preset import Preset
from autoplan.zoo.pretrained import pretrained
from autoplan.zoo.rotary import ROTARY
from autoplan.zoo.seq2seq import SEQ2SEQ
from autoplan.zoo.states import STATES
from autoplan.zoo.subject import ModelUnderPlan
from autoplan.zoo.written import written

PRESETS: Mapping[str, Preset] = {
    **DECODERS,
    **ROTARY,
    **EXPERTS,
    **ENCODERS,
    **SEQ2SEQ,
    **IMAGES,
    **STATES,
    **OTHERS,
}


def names() -> tuple[str, ...]:
    """Names of the presets."""
    return tuple(PRESETS)


def build(name: str, seq_len: int | None = None) -> ModelUnderPlan:
    """Builds a preset on the meta device, in train mode.

    Args:
        name: one of ``names()``.
        seq_len: tokens per sample; the preset's default when None.

    Raises:
        PlanError: unknown name, a sequence the model cannot take, or transformers missing where
            it has to build the model.
    """
    preset = PRESETS.get(name)
    if preset is None:
        raise PlanError(f"no model named {name!r} in the zoo; `autoplan models` lists them")
    length = preset.seq_len if seq_len is None else seq_len
    fields = preset.fields()
    for source in (written, plain):
        found = source(preset.model_type, fields, length, origin=name)
        if found is not None:
            return found
    return pretrained(preset.model_type, fields, length, origin=name)
