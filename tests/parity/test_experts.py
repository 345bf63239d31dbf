"""Experts split over tensor parallel ranks, and samples over data parallel ones, equal one device.

Every rank routes all tokens of its samples and computes its own experts' terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from autoplan.codegen.pipeline import emit_choices
from autoplan.sharding.placement import Placement, Replicate, Shard
from autoplan.trace.capture import capture
from tests.families import DENSE, random_batch, real, tiny
from tests.parity.choose import recipe
from tests.parity.simulate import assert_same, one_device, sharded

LAYERS, BATCH = 4, 4
EXPERTS = {"experts.gate_up_proj": 0, "experts.down_proj": 0}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "mixtral-8x7b": {}, "qwen3-30b-a3b": {}, "deepseek-v3": {DENSE: 2}
}  # fmt: skip


@pytest.mark.parametrize(("tp", "dp", "entry"), [(2, 2, Replicate()), (4, 1, Shard(1))])
@pytest.mark.parametrize("name", MODELS)
def test_split_by_experts(name: str, tp: int, dp: int, entry: Placement):
    torch.manual_seed(0)
    fields = MODELS[name]
    model = real(name, LAYERS, **fields)
    batch = random_batch(tiny(name, LAYERS, **fields), BATCH, torch.float64)
    graph = capture(model, batch).at_batch(BATCH)
    emitted = emit_choices(recipe(graph, tp, EXPERTS, entry, dp=dp, num_microbatches=2), name)
    assert "own_experts(" in emitted.source
    split = [n for n, held in emitted.parameters.items() if held.placement == Shard(0)]
    assert len(split) == 2 * (LAYERS - fields.get(DENSE, 0))
    truth = one_device(model, lambda: model(**batch).loss)
    assert_same(sharded(emitted, model, batch), truth)
