"""What transformers models are trained for: the class that is built, its inputs and its loss.

An architecture may serve several tasks. The class that the config names decides; without one, the
first task of the table that the architecture serves, which is what it was published for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from autoplan.errors import PlanError

_EXAMPLE_BATCH = 2
_IMAGE_SIZE = 224
"""Of a config without a size: its model takes any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One kind of training.

    Attributes:
        name: for messages.
        auto_class: the class of transformers that builds such models.
        mapping: transformers' table of their classes by architecture.
        token_inputs: names of inputs that are token numbers ``[batch, seq_len]``; none for images.
        other_inputs: makes all others from the config.
        loss_type: transformers' name of the loss of a model that states none.
    """

    name: str
    auto_class: str
    mapping: str
    token_inputs: tuple[str, ...] = ()
    other_inputs: Callable[[Any], dict[str, Any]] | None = None
    loss_type: str | None = None


def _images(config: Any) -> dict[str, Any]:
    """Images ``[2, channels, height, width]`` of the config's size and class numbers ``[2]``."""
    import torch

    size = getattr(config, "image_size", _IMAGE_SIZE)
    height, width = (size, size) if isinstance(size, int) else size
    images = (_EXAMPLE_BATCH, config.num_channels, height, width)
    return {
        "pixel_values": torch.empty(images, device="meta"),
        "labels": torch.empty(_EXAMPLE_BATCH, dtype=torch.int64, device="meta"),
    }


def _speech(config: Any) -> dict[str, Any]:
    """Spectrograms ``[2, mel bins, frames]`` of the longest sound; two frames are one position."""
    import torch

    frames = (_EXAMPLE_BATCH, config.num_mel_bins, 2 * config.max_source_positions)
    return {"input_features": torch.empty(frames, device="meta")}


TASKS = (
    Task(
        name="speech recogniser",
        auto_class="AutoModelForSpeechSeq2Seq",
        mapping="MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
        token_inputs=("decoder_input_ids", "labels"),
        other_inputs=_speech,
    ),
    Task(
        name="sequence-to-sequence model",
        auto_class="AutoModelForSeq2SeqLM",
        mapping="MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
        token_inputs=("input_ids", "decoder_input_ids", "labels"),
    ),
    Task(
        name="masked language model",
        auto_class="AutoModelForMaskedLM",
        mapping="MODEL_FOR_MASKED_LM_MAPPING_NAMES",
        token_inputs=("input_ids", "labels"),
    ),
    Task(
        name="causal language model",
        auto_class="AutoModelForCausalLM",
        mapping="MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
        token_inputs=("input_ids", "labels"),
        loss_type="ForCausalLM",
    ),
    Task(
        name="image classifier",
        auto_class="AutoModelForImageClassification",
        mapping="MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
        other_inputs=_images,
    ),
)


def task_of(model_type: str, architectures: object, origin: str) -> Task:
    """The task of an architecture; a config's ``architectures`` are names of classes, or nothing.

    Raises:
        PlanError: it serves none of the tasks, or the config names a class that serves another.
    """
    served = [task for task in TASKS if _classes(task, model_type)]
    if not served:
        names = ", ".join(task.name for task in TASKS)
        raise PlanError(
            f"{origin}: {model_type!r} is none of {names}; "
            "give a factory (pkg.mod:function) that builds it"
        )
    named = [name for name in _listed(architectures) if "For" in name]
    if not named:
        return served[0]
    for task in served:
        if named[0] in _classes(task, model_type):
            return task
    raise PlanError(
        f"{origin} is the config of a {named[0]}, which is none of "
        f"{', '.join(task.name for task in TASKS)}; give a factory (pkg.mod:function)"
    )


def token_inputs(names: Sequence[str], seq_len: int) -> dict[str, Any]:
    """Token numbers ``[2, seq_len]`` of each name on the meta device."""
    import torch

    shape = (_EXAMPLE_BATCH, seq_len)
    return {name: torch.empty(shape, dtype=torch.int64, device="meta") for name in names}


def _classes(task: Task, model_type: str) -> tuple[str, ...]:
    """Names of the classes that serve the task."""
    from transformers.models.auto import modeling_auto

    found = getattr(modeling_auto, task.mapping).get(model_type, ())
    return (found,) if isinstance(found, str) else tuple(found)


def _listed(architectures: object) -> Iterator[str]:
    if isinstance(architectures, (list, tuple)):
        yield from (name for name in architectures if isinstance(name, str))
