"""Dropout has the masks of one device on any mesh, in any microbatch, stage or order."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autoplan.codegen.again import Again
from autoplan.codegen.operators import DROPOUT
from autoplan.codegen.pipeline import emit_choices
from autoplan.runtime.reference_dropout import reference_dropout
from autoplan.sharding.placement import Replicate, Shard
from autoplan.trace.capture import capture
from autoplan.trace.stack import stack_of
from tests.parity.again import random_again
from tests.parity.choose import random_program, recipe, replicated
from tests.parity.dropping import MODELS, dropping
from tests.parity.models import initialise
from tests.parity.simulate import assert_same, one_device, sharded
from tests.parity.stages import stages_at
from tests.parity.test_recipes import GPT2, MEGATRON, VOCABULARY

BERT = {
    **{f"{name}.{part}": 0 for name in ("query", "key", "value") for part in ("weight", "bias")},
    "intermediate.dense.weight": 0, "intermediate.dense.bias": 0,
    "attention.output.dense.weight": 1, "output.dense.weight": 1, "word_embeddings.weight": 0,
}  # fmt: skip
WEIGHTS = {
    "gpt": {**MEGATRON, **VOCABULARY},
    "gpt2": GPT2,
    "bert": BERT,
    "mlp": {f"{layer}.0.{part}": 0 for layer in (0, 2) for part in ("weight", "bias")}
    | {f"{layer}.0.weight": 1 for layer in (1, 3)},
}
DROPOUTS = {"gpt": 1 + 3 * 2, "gpt2": 1 + 3 * 2, "bert": 1 + 3 * 2, "mlp": 3 + 4}


@pytest.mark.parametrize("name", MODELS)
def test_every_dropout_is_in_the_graph_and_drops(name):
    tested = dropping(name)
    found = [n for n in tested.graph.of_kind("call") if n.target == "aten.dropout.default"]
    assert len(found) == DROPOUTS[name]
    assert not any("attention" in node.target for node in tested.graph.of_kind("call"))
    without = tested.model.eval()(**tested.batch)
    tested.model.train()
    loss = without if isinstance(without, torch.Tensor) else without.loss
    assert abs(loss - tested.truth().loss) > 1e-3 * abs(loss)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("entry", [Replicate(), Shard(1)])
@pytest.mark.parametrize(("tp", "dp", "num_microbatches"), [(2, 1, 1), (1, 3, 2), (4, 2, 3)])
def test_meshes(name, entry, tp, dp, num_microbatches):
    tested = dropping(name)
    recomputed = frozenset(block.path for block in tested.graph.blocks[::2])
    placed = recipe(
        tested.graph, tp, WEIGHTS[name], entry,
        dp=dp, num_microbatches=num_microbatches, recomputed=recomputed,
    )  # fmt: skip
    assert_same(sharded(emit_choices(placed, name), tested.model, tested.batch), tested.truth())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tp", [1, 4])
def test_operators_that_run_again_drop_the_same(name, tp):
    tested = dropping(name)
    dropouts = {
        block.path: Again(
            calls=frozenset(n for n in block.nodes if tested.graph.by_name[n].target == DROPOUT),
            inputs=frozenset(),
        )
        for block in tested.graph.blocks
    }
    for again in (dropouts, random_again(tested.graph, tp)):
        placed = recipe(tested.graph, tp, WEIGHTS[name], dp=3, num_microbatches=2, again=again)
        emitted = emit_choices(placed, name)
        assert "again(" in emitted.source
        assert_same(sharded(emitted, tested.model, tested.batch), tested.truth())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", range(3))
def test_random_placements_in_stages(name, seed):
    tested = dropping(name)
    stages = stages_at(tested.graph, range(len(stack_of(tested.graph).items)))
    emitted = random_program(tested.graph, 4, seed, num_microbatches=3, stages=stages)
    assert_same(sharded(emitted, tested.model, tested.batch), tested.truth())


class Masked(nn.Module):
    """Attention with a mask of each kind; the first query of the second sample sees no key."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.project, self.kind = nn.Linear(16, 48), kind

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            y.view(len(x), -1, 4, 4).transpose(1, 2) for y in self.project(x).chunk(3, -1)
        )
        mask = ~hidden if self.kind is bool else hidden.to(x).masked_fill(hidden, -torch.inf)
        found = nn.functional.scaled_dot_product_attention(
            query, key, value, mask[:, None], dropout_p=0.2, scale=0.3
        )
        return (found**2).mean()


@pytest.mark.parametrize("kind", [bool, float])
def test_masked_attention(kind):
    model = initialise(Masked(kind), torch.float64)
    torch.manual_seed(0)
    batch = {"x": torch.randn(6, 5, 16).double(), "hidden": torch.rand(6, 5, 5) < 0.3}
    batch["hidden"][1, 0] = True
    graph = capture(model, batch).at_batch(6)
    truth = one_device(model, lambda: model(**batch))
    assert not truth.loss.isnan()
    for seed in range(4):
        emitted = random_program(graph, 2, seed, dp=2, num_microbatches=3)
        assert_same(sharded(emitted, model, batch), truth)


def test_one_device_is_a_plan_like_any_other():
    tested = dropping("gpt2")
    emitted = emit_choices(replicated(tested.graph, 1), "gpt2")
    assert_same(sharded(emitted, tested.model, tested.batch), tested.truth())


def test_blocks_share_their_code_and_number_from_their_own_first_dropout():
    tested = dropping("gpt2")
    emitted = emit_choices(replicated(tested.graph, 1), "gpt2")
    assert len(set(emitted.stages[0].block_classes.values())) == 1
    assert emitted.stages[0].draws_before == {"transformer.h.0": 1, "transformer.h.1": 4}
    assert [f"draws_before + {after}" in emitted.source for after in range(4)] == [True] * 3 + [
        False
    ]


def test_checkpoints_need_no_state_of_generators():
    tested = dropping("gpt2")
    recomputed = frozenset(block.path for block in tested.graph.blocks)
    source = emit_choices(replicated(tested.graph, 1, recomputed=recomputed), "gpt2").source
    assert "preserve_rng_state=False" in source
    assert "preserve_rng_state=True" not in source


def test_the_reference_numbers_what_drops():
    x = torch.randn(4, 8)
    drop = nn.Dropout(0.5)
    with reference_dropout(seed=1):
        first, second = drop(x), drop(x)
    with reference_dropout(seed=1):
        nn.functional.dropout(x, 0.0)
        nn.functional.dropout(x, 0.5, training=False)
        assert torch.equal(nn.functional.dropout(x.clone(), 0.5, inplace=True), first)
        assert torch.equal(nn.functional.dropout(x), second)
    assert not torch.equal(first, second)
    with reference_dropout(seed=1, step=1):
        assert not torch.equal(drop(x), first)


def test_a_checkpointed_model_drops_once():
    layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh())
    gradients = []
    for call in (layer, partial(checkpoint, layer, use_reentrant=False)):
        x = torch.linspace(-1, 1, 32).view(4, 8).requires_grad_()
        with reference_dropout(seed=3):
            loss = call(call(x)).sum()
        loss.backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)
