"""Layers of experts: their mathematics, what they cost and keep, and how models have them."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from autoplan.errors import UnsupportedModelError
from autoplan.sharding.batch import batch_layout
from autoplan.trace import experts
from autoplan.trace.capture import capture
from autoplan.trace.experts import EXPERTS
from autoplan.zoo.pretrained import pretrained
from tests.families import DENSE, LENGTH, VOCAB, tiny, traced

TOKENS, PER_TOKEN, COUNT, INNER, HIDDEN = 12, 2, 4, 6, 8


def floats(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def token_by_token(tokens, index, weight, gate_up, down, activation):
    """The definition: each token through each of its experts."""
    results = []
    for token, chosen, shares in zip(tokens, index.tolist(), weight, strict=True):
        result = torch.zeros_like(token)
        for expert, share in zip(chosen, shares, strict=True):
            gate, up = (gate_up[expert] @ token).chunk(2)
            result = result + share * (down[expert] @ (activation(gate) * up))
        results.append(result)
    return torch.stack(results)


@settings(deadline=None, max_examples=30)
@given(
    tokens=st.integers(1, 9), count=st.integers(1, 6), used=st.integers(1, 6),
    kind=st.sampled_from(["silu", "gelu", "relu"]), seed=st.integers(0, 100), data=st.data(),
)  # fmt: skip
def test_every_token_goes_through_its_experts(tokens, count, used, kind, seed, data):
    """Also where some experts have no token, and where a token has all."""
    torch.manual_seed(seed)
    used = min(used, count)
    per_token = data.draw(st.integers(1, used))
    index = torch.rand(tokens, used).topk(per_token).indices
    learned = [
        floats(tokens, HIDDEN), floats(tokens, per_token), floats(count, 2 * INNER, HIDDEN),
        floats(count, HIDDEN, INNER),
    ]  # fmt: skip
    x, weight, gate_up, down = learned
    expected = token_by_token(x, index, weight, gate_up, down, getattr(F, kind))
    found = EXPERTS(x, index, weight, gate_up, down, kind)
    torch.testing.assert_close(found, expected)
    given_gradient = torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad(found, learned, given_gradient),
        torch.autograd.grad(expected, learned, given_gradient),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("index", [[0, 0, 1, 3, 3, 3], [2, 2, 2, 2, 2, 2]])
def test_the_kernel_of_a_gpu_computes_the_same(index):
    """torch's grouped product, which also runs here, against the products one by one."""
    torch.manual_seed(0)
    x = torch.randn(6, 16, requires_grad=True)
    chosen, weight = torch.tensor(index).unsqueeze(1), torch.rand(6, 1, requires_grad=True)
    gate_up = torch.randn(COUNT, 32, 16, requires_grad=True)
    down = torch.randn(COUNT, 16, 16, requires_grad=True)
    learned = x, weight, gate_up, down
    expected = EXPERTS(x, chosen, weight, gate_up, down, "silu")
    gradient = torch.randn_like(expected)
    with mock.patch.object(experts, "_has_kernel", return_value=True):
        found = EXPERTS(x, chosen, weight, gate_up, down, "silu")
        ours = torch.autograd.grad(found, learned, gradient)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(ours, torch.autograd.grad(expected, learned, gradient))


class Layer(nn.Module):
    """One layer of experts in ``dtype``, with shares in float32, behind a linear layer."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.linear = nn.Linear(HIDDEN, HIDDEN, dtype=dtype)
        self.router = nn.Linear(HIDDEN, COUNT)
        self.gate_up = nn.Parameter(torch.randn(COUNT, 2 * INNER, HIDDEN, dtype=dtype))
        self.down = nn.Parameter(torch.randn(COUNT, HIDDEN, INNER, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        weight, index = self.router(x.float()).softmax(-1).topk(PER_TOKEN)
        return EXPERTS(x, index, weight, self.gate_up, self.down, "silu").sum(dtype=torch.float32)


def node_of(model: nn.Module):
    x = torch.randn(TOKENS, HIDDEN, dtype=model.down.dtype)
    graph = capture(model, (x,)).at_batch(TOKENS)
    return next(node for node in graph.nodes if node.target == "autoplan.experts.default")


def test_operations_are_those_of_routed_tokens():
    product = 2 * TOKENS * PER_TOKEN * HIDDEN * INNER
    model = Layer(torch.float32)
    node = node_of(model)
    assert (node.flops, node.backward_flops) == (3 * product, 6 * product)
    model.gate_up.requires_grad_(False)
    assert node_of(model).backward_flops == 4 * product
    model.linear.requires_grad_(False)
    assert node_of(model).backward_flops == product


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kept_bytes_are_those_of_a_real_run(dtype):
    torch.manual_seed(0)
    model = Layer(dtype)
    x = model.linear(torch.randn(TOKENS, HIDDEN, dtype=dtype))
    weight, index = model.router(x.float()).softmax(-1).topk(PER_TOKEN)
    lasting = {
        tensor.untyped_storage().data_ptr() for tensor in (x, weight, index, *model.parameters())
    }
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        EXPERTS(x, index, weight, model.gate_up, model.down, "silu")
    bytes_of = {at: tensor.untyped_storage().nbytes() for at, tensor in kept.items()}
    own = sum(nbytes for at, nbytes in bytes_of.items() if at not in lasting)
    node = node_of(model)
    assert sum(saved.nbytes for saved in node.saved if saved.source is None) == own


def two_kinds(each: int):
    """DeepSeek-V3's shape: so many dense layers, then as many of experts."""
    return tiny("deepseek-v3", 2 * each, **{DENSE: each})


@pytest.mark.parametrize("each", [2, 4])
def test_stacks_of_two_kinds_fold_to_the_whole_trace(each):
    subject = two_kinds(each)
    folded = capture(subject.model, subject.example_inputs)
    assert folded == capture(subject.model, subject.example_inputs, fold=False)
    if each == 4:
        assert [(kind, len(blocks)) for kind, blocks in folded.kinds.items()] == [
            ("model.layers.0", 4), ("model.layers.4", 4)
        ]  # fmt: skip


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3"])
def test_samples_may_go_to_different_ranks(name):
    graph = traced(name)
    layout = batch_layout(graph)
    assert not layout.mixing
    assert not layout.hoisted or all(ref.node not in graph.block_of for ref in layout.hoisted)


def test_experts_of_another_form_are_refused():
    fields = {
        "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2, "head_dim": 8,
        "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": VOCAB,
        "num_local_experts": 4,
    }  # fmt: skip
    subject = pretrained("gpt_oss", fields, LENGTH, origin="a test")
    with pytest.raises(UnsupportedModelError, match="GptOssExperts is not supported"):
        capture(subject.model, subject.example_inputs)


def test_models_keep_their_own_implementation():
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    subject = two_kinds(1)
    capture(subject.model, subject.example_inputs)
    assert "get_interface" not in vars(ALL_EXPERTS_FUNCTIONS)
