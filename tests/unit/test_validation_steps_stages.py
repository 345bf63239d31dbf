"""Layers and weights of the chunks of a pipeline against the whole model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.validation.ranks.stages import chunks, held_chunks, weights_of
from tests.unit.memory_setups import LLAMA3_405B, MEGATRON, gpt, llama, setup


def layers_of(layers: int, pp: int, virtual_stages: int = 1) -> list[int]:
    run = setup(gpt(layers, 256, 4), MEGATRON, pp=pp, virtual_stages=virtual_stages)
    return [chunk.layers for chunk in chunks(run)]


@settings(deadline=None, max_examples=50)
@given(layers=st.integers(1, 130), pp=st.integers(1, 40), virtual_stages=st.integers(1, 4))
def test_every_layer_is_in_one_chunk(layers: int, pp: int, virtual_stages: int) -> None:
    found = layers_of(layers, pp, virtual_stages)
    assert sum(found) == layers
    assert len(found) == pp * virtual_stages
    assert max(found) - min(found) <= 1


def test_the_ends_take_a_layers_place_where_that_makes_chunks_even() -> None:
    """Llama 3 405B, section 3.3.2: one layer less on the first and the last stage."""
    run = setup(LLAMA3_405B, MEGATRON, pp=16, virtual_stages=8, schedule="interleaved_1f1b")
    found = [chunk.layers for chunk in chunks(run)]
    assert found == [0, *[1] * 126, 0]
    assert layers_of(30, 4) == [7, 8, 8, 7]


def test_layers_that_do_not_divide_go_to_the_first_chunks() -> None:
    assert layers_of(7, 4) == [2, 2, 2, 1]
    assert layers_of(3, 4) == [1, 1, 1, 0]


def test_the_ends_are_on_the_first_and_the_last_chunk() -> None:
    every = chunks(setup(gpt(8, 256, 4), MEGATRON, pp=4, virtual_stages=2))
    assert [chunk.embedding for chunk in every] == [True, *7 * [False]]
    assert [chunk.head for chunk in every] == [*7 * [False], True]


@pytest.mark.parametrize("schedule", ["interleaved_1f1b", "zbv"])
def test_ranks_hold_the_chunks_that_their_schedule_runs(schedule: str) -> None:
    run = setup(gpt(6, 256, 4), MEGATRON, pp=4, virtual_stages=2, schedule=schedule, microbatches=8)
    every = chunks(run)
    second = [7, 6, 5, 4] if schedule == "zbv" else [4, 5, 6, 7]
    assert held_chunks(run, every) == tuple(
        (every[rank], every[stage]) for rank, stage in enumerate(second)
    )


MODELS = {
    "gpt": gpt(12, 1024, 16),
    "untied": replace(gpt(12, 1024, 16), tied=False),
    "llama": llama(12, 1024, 16, 8, 2816),
    "experts": replace(
        llama(12, 1024, 16, 8, 2816), experts=8, experts_per_token=2, expert_ffn=1408
    ),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "degrees", [{}, {"pp": 4}, {"pp": 5, "virtual_stages": 2}, {"tp": 4}, {"tp": 8, "pp": 4}]
)
def test_weights_of_all_ranks_are_the_model(name: str, degrees: dict[str, int]) -> None:
    """What is not split is on every tensor-parallel rank; a tied head has a table of its own."""
    model = MODELS[name]
    run = setup(model, MEGATRON, **degrees)
    held = run.tp * sum(weights_of(run, chunk) for chunk in chunks(run))
    positions = 0 if model.rotary else run.seq_len
    final_norm = model.hidden * (2 if model.biases else 1)
    whole_on_each = model.layers * model.replicated_parameters + positions * model.hidden
    copied_table = model.embedding_parameters * (model.tied and len(chunks(run)) > 1)
    extra = (run.tp - 1) * (whole_on_each + final_norm) + copied_table
    assert held == model.parameters(positions) + extra


def test_expert_ranks_hold_a_share_of_the_experts() -> None:
    whole, shared = (setup(MODELS["experts"], MEGATRON, dp=8, ep=ep) for ep in (1, 8))
    model = MODELS["experts"]
    lost = weights_of(whole, chunks(whole)[0]) - weights_of(shared, chunks(shared)[0])
    assert lost == model.layers * model.feed_forward_parameters * 7 / 8


def test_heads_of_keys_that_are_fewer_than_the_ranks_are_on_each() -> None:
    model = llama(1, 1024, 16, 2, 2816)
    run = setup(model, MEGATRON, tp=8)
    held = weights_of(run, chunks(run)[0])
    split = (2 * 1024 * 1024 + model.feed_forward_parameters + 2 * model.embedding_parameters) / 8
    assert held == split + 2 * 1024 * 64 + 3 * 1024
