"""Which layers each model chunk of a pipeline holds, and its work for one microbatch.

Chunks are in the order of the model. Layers are spread evenly;
where they do not divide, the embedding and the head take a layer's place if that makes it even
(Llama 3 405B: 126 layers and the two ends on 64 chunks), else the first chunks hold one more.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.validation.ranks.sizes import local_heads
from autoplan.validation.setups.pipelines import ends_fill
from autoplan.validation.setups.setup import Setup
from cost_models.schedules import PipelineShape


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A run of layers, perhaps with an end of the model."""

    layers: int
    embedding: bool
    head: bool


ONE_LAYER = Chunk(layers=1, embedding=False, head=False)


def chunks(setup: Setup) -> tuple[Chunk, ...]:
    """All chunks of the model; one on each rank without interleaving."""
    count = setup.pp * setup.virtual_stages
    return tuple(
        Chunk(layers=layers, embedding=index == 0, head=index == count - 1)
        for index, layers in enumerate(_spread(setup.model.layers, count))
    )


def pipeline_of(setup: Setup) -> PipelineShape:
    """The schedule of the run, with a stage for each chunk.

    Raises:
        ScheduleError: the schedule cannot run these numbers.
    """
    return PipelineShape(
        schedule=setup.schedule,
        ranks=setup.pp,
        stages=setup.pp * setup.virtual_stages,
        microbatches=setup.microbatches,
    )


def held_chunks(setup: Setup, model: tuple[Chunk, ...]) -> tuple[tuple[Chunk, ...], ...]:
    """The chunks of each pipeline rank, as the schedule places them."""
    shape = pipeline_of(setup)
    held: list[list[Chunk]] = [[] for _ in range(setup.pp)]
    for stage, chunk in enumerate(model):
        held[shape.rank_of(stage)].append(chunk)
    return tuple(tuple(each) for each in held)


def weights_of(setup: Setup, chunk: Chunk) -> float:
    """Weights of a chunk on one rank, before any split over data-parallel ranks.

    A tied head on another stage than the embedding keeps a copy of the table; heads of keys and
    values that are fewer than the ranks are on each of them.
    """
    model, tp = setup.model, setup.tp
    attention = 2 * model.hidden * model.head_dim * sum(local_heads(setup))
    experts = model.feed_forward_parameters / (setup.ep if model.experts else 1)
    layer = attention + experts / tp + model.replicated_parameters
    table = model.embedding_parameters / tp
    positions = 0 if model.rotary else setup.seq_len * model.hidden
    final_norm = model.hidden * (2 if model.biases else 1)
    ends = (table + positions) * chunk.embedding + final_norm * chunk.head
    if chunk.head and not (model.tied and chunk.embedding):
        ends += table
    return chunk.layers * layer + ends


def _spread(layers: int, count: int) -> list[int]:
    if ends_fill(layers, count):
        each = (layers + 2) // count
        return [each - 1, *[each] * (count - 2), each - 1]
    each, more = divmod(layers, count)
    return [each + (index < more) for index in range(count)]
