"""Written models against their definitions, element by element."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from autoplan import zoo
from autoplan.errors import PlanError
from autoplan.zoo.written import dlrm, mmoe, pangu, switch

SIZES = switch.Sizes(
    vocab_size=8, positions=6, width=4, hidden=5, layers=2, heads=2, experts=3, capacity=2
)


def drawn(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    for parameter in module.double().parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    return module


def test_an_expert_takes_the_first_tokens_that_choose_it():
    layer, x = drawn(switch.Switch(SIZES)), torch.randn(3, 6, 4, dtype=torch.float64)
    shares = torch.softmax((x @ layer.router.weight.T).float(), -1)
    expected, balance = torch.zeros_like(x), torch.zeros(3)
    for sample in range(3):
        loads = [0] * 3
        for token in range(6):
            gate, expert = shares[sample, token].max(0)
            loads[expert] += 1
            if loads[expert] <= SIZES.capacity:
                hidden = torch.relu(x[sample, token] @ layer.up[expert])
                expected[sample, token] = gate * (hidden @ layer.down[expert])
        means = shares[sample].mean(0)
        balance[sample] = 3 * sum(load / 6 * means[e] for e, load in enumerate(loads))
    found = layer(x)
    torch.testing.assert_close(found[0], expected)
    torch.testing.assert_close(found[1], balance)


@pytest.mark.parametrize("both", [True, False])
def test_buckets_are_those_of_t5(both):
    from transformers.models.t5.modeling_t5 import T5Attention

    ahead = torch.arange(-300, 301)
    expected = T5Attention._relative_position_bucket(ahead, both, 32, 128)
    assert torch.equal(switch.bucket(ahead, 32, both=both), expected)


def test_all_pairs_of_features_meet_once():
    sizes = dlrm.Sizes(dense=3, rows=(5, 6), width=4, bottom=(7,), top=(6,))
    model, count = drawn(dlrm.Model(sizes)), 5
    dense, labels = torch.randn(count, 3).double(), torch.randint(2, (count,)).double()
    rows = torch.randint(5, (count, 2))
    losses = []
    for n in range(count):
        read = [table.weight[row] for table, row in zip(model.tables, rows[n], strict=True)]
        met = [model.bottom(dense[n]), *read]
        pairs = [met[a] @ met[b] for a in range(3) for b in range(a)]
        score = model.top(torch.cat([met[0], torch.stack(pairs)]))[0]
        losses.append(functional.binary_cross_entropy_with_logits(score, labels[n]))
    torch.testing.assert_close(model(dense, rows, labels), torch.stack(losses).mean())


def test_each_task_weighs_all_experts():
    sizes = mmoe.Sizes(
        features=2, rows=5, width=3, experts=3, hidden=4, outputs=2, tasks=2, tower=3
    )
    model, ids = drawn(mmoe.Model(sizes)), torch.tensor([[1, 4], [0, 2]])
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()
    losses = []
    for n in range(2):
        read = [table.weight[row] for table, row in zip(model.tables, ids[n], strict=True)]
        x = torch.cat(read)
        parts = model.experts
        made = [
            torch.relu(
                torch.relu(x @ parts.up[e] + parts.up_bias[e]) @ parts.down[e] + parts.down_bias[e]
            )
            for e in range(3)
        ]
        for number, task in enumerate(model.tasks):
            shares = torch.softmax(task.gate(x), -1)
            mixed = sum(share * one for share, one in zip(shares, made, strict=True))
            score = task.head(torch.relu(task.tower(mixed)))[0]
            losses.append(functional.binary_cross_entropy_with_logits(score, labels[n, number]))
    loss = model(ids, labels)
    torch.testing.assert_close(loss, torch.stack(losses).mean())


def test_the_query_layer_asks_by_position():
    sizes = pangu.Sizes(vocab_size=8, positions=5, width=4, layers=2, heads=1)
    layer = drawn(pangu.Layer(sizes))
    hidden, asked = torch.randn(2, 1, 5, 4).double()
    normed = layer.attention_norm(hidden)
    scores = layer.query(asked) @ layer.key(normed).transpose(1, 2) / math.sqrt(4)
    ahead = torch.ones(5, 5, dtype=torch.bool).triu(1)
    mixed = scores.masked_fill(ahead, -math.inf).softmax(-1) @ layer.value(normed)
    after = hidden + layer.out(mixed)
    expected = after + layer.down(functional.gelu(layer.up(layer.mlp_norm(after))))
    torch.testing.assert_close(layer(hidden, asked), expected)


def test_lengths_are_checked():
    with pytest.raises(PlanError, match="exceeds the model's maximum of 1024"):
        zoo.build("pangu-200b", 2048)
    with pytest.raises(PlanError, match="takes no sequence length"):
        zoo.build("dlrm-24b", 16)
    assert zoo.build("lstm-66m", 70).seq_len == 70
