"""Which layers each model chunk of a pipeline holds, and its work for one microbatch.

Chunks are in the order of the model; chunk ``i`` runs on rank ``i % pp``. Layers are spread evenly;
where they do not divide, the embedding and the head take a layer's place if that makes it even
(Llama 3 405B: 126 layers and the two ends on 64 chunks), else the first chunks hold one more.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.validation.setup import Setup


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A run of layers, perhaps with an end of the model."""

    layers: int
    embedding: bool
    head: bool


def chunks(setup: Setup) -> tuple[Chunk, ...]:
    """All chunks of the model; one on each rank without interleaving."""
    count = setup.pp * setup.virtual_stages
    return tuple(
        Chunk(layers=layers, embedding=index == 0, head=index == count - 1)
        for index, layers in enumerate(_spread(setup.model.layers, count))
    )


def weights_of(setup: Setup, chunk: Chunk) -> float:
    """Weights of a chunk on one rank, before any split over data-parallel ranks.

    A tied head on another stage than the embedding keeps a copy of the table.
    """
    model, tp = setup.model, setup.tp
    experts = model.feed_forward_parameters / (setup.ep if model.experts else 1)
    layer = (model.attention_parameters + experts) / tp + model.replicated_parameters
    table = model.embedding_parameters / tp
    positions = 0 if model.rotary else setup.seq_len * model.hidden
    ends = (table + positions) * chunk.embedding
    if chunk.head and not (model.tied and chunk.embedding):
        ends += table
    return chunk.layers * layer + ends


def _spread(layers: int, count: int) -> list[int]:
    if layers % count and (layers + 2) % count == 0 and count > 1:
        each = (layers + 2) // count
        return [each - 1, *[each] * (count - 2), each - 1]
    each, more = divmod(layers, count)
    return [each + (index < more) for index in range(count)]
