"""Outputs without a loss, under random placements of the loss's program, equal one device."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from autoplan.codegen.evaluation import emit_evaluation
from autoplan.trace.huggingface import disable_caches
from autoplan.trace.outputs import ModelForward
from tests.distributed.cases import lowest_dtype
from tests.distributed.evaluations import assert_same_outputs, inputs_of
from tests.families import TINY, random_batch, real, tiny, traced
from tests.parity.choose import random_choices
from tests.parity.evaluate import evaluated
from tests.parity.stages import stages_at

BATCH = 4
MIXED = ("resnet50",)
"""Planned for one microbatch, whose statistics ranks of dp would take together."""

WRITTEN = ("lstm-66m", "pangu-200b", "switch-base-8", "dlrm-24b", "mmoe")
"""Return their loss alone."""


@cache
def batch_of(name: str) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return random_batch(tiny(name), BATCH, torch.float64)


def check(name: str, seed: int, *, tp: int, firsts: tuple[int, ...] = (), length: int = 8) -> None:
    """A twin in parts of the batch; ``length`` is that of the evaluation's texts."""
    graph, model = traced(name).at_batch(BATCH), real(name).eval()
    stages = stages_at(graph, firsts) if firsts else ()
    dp = 1 if name in MIXED else 2
    chosen, trained = random_choices(graph, tp, seed, dp=dp, stages=stages)
    inputs = {
        key: value[:, :length] if value.dim() == 2 and not value.is_floating_point() else value
        for key, value in inputs_of(name, batch_of(name)).items()
    }
    disable_caches(model)
    with torch.no_grad():
        expected = model(**inputs)
    found, structure = ModelForward(model, dtype=None).capture(
        inputs,
        batch_dims=dict.fromkeys(inputs, 0),
        trains=False,
        global_batch=BATCH,
        paths=[block.path for block in graph.blocks],
        unfuses_attention=False,
    )
    emitted = emit_evaluation(found, chosen, trained, "random")
    got = structure.filled(evaluated(trained, emitted, model, inputs))
    assert_same_outputs(got, expected, lowest_dtype(found))


def test_other_lengths():
    check("llama3.2-1b", 1, tp=2, length=5)


@pytest.mark.parametrize(("name", "firsts"), [("gpt2", (0, 1, 3)), ("t5-small", (0, 2, 5, 6))])
def test_stages(name, firsts):
    check(name, 2, tp=2, firsts=firsts)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", [name for name in TINY if name not in WRITTEN])
def test_all_families(name, seed):
    check(name, seed, tp=(2, 4, 8)[seed])
