"""Bytes per weight against the table of ZeRO stages, written out by hand."""

import pytest

from autoplan.capabilities import ZERO_STAGES
from cost_models.memory import MemoryBreakdown, WeightBytes, weight_bytes

# Per parameter on 4 ranks under AdamW: stored, gradient, state, copy kept, copy in flight.
BY_HAND = {
    ("fp32", 0): (4, 4, 8, 0, 0),
    ("fp32", 1): (1, 4, 2, 4, 0),
    ("fp32", 2): (1, 1, 2, 4, 0),
    ("fp32", 3): (1, 1, 2, 0, 4),
    ("bf16", 0): (4, 4, 8, 2, 0),
    ("bf16", 1): (1, 4, 2, 2, 0),
    ("bf16", 2): (1, 1, 2, 2, 0),
    ("bf16", 3): (1, 1, 2, 0, 2),
}


def at_stage(number: int, **changes) -> WeightBytes:
    stage = ZERO_STAGES[number]
    arguments = {"precision": "bf16", "optimizer": "adamw", "dp": 4, "stage": stage}
    return weight_bytes(**(arguments | changes))


def amounts(weight: WeightBytes) -> tuple[float, ...]:
    return (
        weight.parameters,
        weight.gradients,
        weight.optimizer_state,
        weight.gathered_parameters,
        weight.gathered_in_flight,
    )


@pytest.mark.parametrize(("precision", "stage"), BY_HAND)
def test_stages_on_four_ranks(precision, stage):
    assert amounts(at_stage(stage, precision=precision)) == BY_HAND[precision, stage]


@pytest.mark.parametrize("stage", range(4))
def test_one_rank_holds_everything_once(stage):
    stored, gradient, state, kept, in_flight = amounts(at_stage(stage, precision="fp32", dp=1))
    assert (stored, gradient, state, kept, in_flight) == (4, 4, 8, 0, 0)
    *same, kept, in_flight = amounts(at_stage(stage, dp=1))
    assert same == [4, 4, 8]
    assert kept + in_flight == 2


@pytest.mark.parametrize("stage", range(4))
def test_frozen_weights_have_no_gradient_and_no_state(stage):
    frozen, trained = at_stage(stage, trainable=False), at_stage(stage)
    assert (frozen.gradients, frozen.optimizer_state, frozen.optimizer_step) == (0, 0, 0)
    assert frozen.parameters == trained.parameters
    assert frozen.gathered_parameters == trained.gathered_parameters


def test_fp16_is_like_bf16():
    assert at_stage(1, precision="fp16") == at_stage(1, precision="bf16")


def test_linear_terms_are_categories_of_the_breakdown():
    categories = set(MemoryBreakdown.__slots__)
    passing = {"gathered_in_flight", "gradients_made", "gradients_sent", "optimizer_step"}
    assert set(WeightBytes.__slots__) - passing <= categories


def test_unknown_words_are_refused():
    with pytest.raises(ValueError, match=r"unknown optimizer 'lion'; known: adamw, adam"):
        at_stage(0, optimizer="lion")
    with pytest.raises(ValueError, match=r"unknown precision 'fp8'; known: fp32, bf16, fp16"):
        at_stage(0, precision="fp8")
    with pytest.raises(ValueError, match="number of ranks"):
        at_stage(0, dp=0)
