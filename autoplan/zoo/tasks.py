"""What transformers models are trained for: the class that is built, its inputs and its loss.

An architecture may serve several tasks. The class that the config names decides; without one, the
first task of the table that the architecture serves, which is what it was published for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from autoplan.errors import PlanError

_EXAMPLE_BATCH = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One kind of training.

    Attributes:
        name: for messages.
        auto_class: the class of transformers that builds such models.
        mapping: transformers' table of their classes by architecture.
        token_inputs: names of the inputs, each token numbers ``[batch, seq_len]``; none for images.
        loss_type: transformers' name of the loss of a model that states none.
    """

    name: str
    auto_class: str
    mapping: str
    token_inputs: tuple[str, ...] = ()
    loss_type: str | None = None


TASKS = (
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


def image_inputs(config: Any) -> dict[str, Any]:
    """Images ``[2, channels, height, width]`` of the config's size and class numbers ``[2]``."""
    import torch

    size = config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    images = (_EXAMPLE_BATCH, config.num_channels, height, width)
    return {
        "pixel_values": torch.empty(images, device="meta"),
        "labels": torch.empty(_EXAMPLE_BATCH, dtype=torch.int64, device="meta"),
    }


def _classes(task: Task, model_type: str) -> tuple[str, ...]:
    """Names of the classes that serve the task."""
    from transformers.models.auto import modeling_auto

    found = getattr(modeling_auto, task.mapping).get(model_type, ())
    return (found,) if isinstance(found, str) else tuple(found)


def _listed(architectures: object) -> Iterator[str]:
    if isinstance(architectures, (list, tuple)):
        yield from (name for name in architectures if isinstance(name, str))
