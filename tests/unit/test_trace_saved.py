"""Bytes that autograd keeps, against storages that are alive after a real eager forward."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph, Ref
from tests.unit import trace_models as models


class LiveStorages(TorchDispatchMode):
    """Remembers, without keeping it, every storage that appears in a result."""

    def __init__(self):
        super().__init__()
        self.seen: dict[int, list[tuple[StorageWeakRef, int]]] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                entry = StorageWeakRef(storage), storage.nbytes()
                self.seen.setdefault(storage._cdata, []).append(entry)
        return result

    def alive_bytes(self, excluded: set[int]) -> int:
        gc.collect()
        alive = {
            address: nbytes
            for address, entries in self.seen.items()
            for reference, nbytes in entries
            if not reference.expired() and address not in excluded
        }
        return sum(alive.values())


def _eager_bytes(model, inputs, run):
    tensors = (*models.state_of(model).values(), *inputs)
    lasting = {tensor.untyped_storage()._cdata for tensor in tensors}
    with LiveStorages() as storages:
        loss = run()
    lasting.add(loss.untyped_storage()._cdata)
    return storages.alive_bytes(lasting)


def _kept_bytes(graph: OpGraph) -> int:
    kept: dict[Ref | tuple[str, int], int] = {}
    for node in graph.nodes:
        for index, saved in enumerate(node.saved):
            kept[saved.source or (node.name, index)] = saved.nbytes
    return sum(kept.values())


def _summed_lm_loss(outputs, targets):
    return F.cross_entropy(outputs.logits.flatten(0, 1), targets.flatten(), reduction="sum")


def _summed_square(outputs, targets):
    return F.mse_loss(outputs, targets, reduction="sum")


@pytest.mark.parametrize("batch", [2, 3])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_decoder_keeps_what_eager_keeps(dropout, batch):
    model = models.GPT(layers=5, dropout=dropout)
    ids, targets = models.tokens(batch, 12, 61)
    graph = capture(model, (ids, targets), loss_fn=models.summed_token_loss, kernels="cpu")
    eager = _eager_bytes(
        model, (ids, targets), lambda: models.summed_token_loss(model(ids), targets)
    )
    assert _kept_bytes(graph.at_batch(batch)) == eager


@pytest.mark.parametrize("fold", [True, False])
def test_mlp_keeps_what_eager_keeps(fold):
    model, x, y = models.MLP(layers=6), torch.randn(4, 8), torch.randn(4, 8)
    graph = capture(model, (x, y), loss_fn=_summed_square, kernels="cpu", fold=fold)
    eager = _eager_bytes(model, (x, y), lambda: _summed_square(model(x), y))
    assert _kept_bytes(graph.at_batch(4)) == eager


@pytest.mark.parametrize("build", [models.llama, models.gpt2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_transformers_models_keep_what_eager_keeps(build, dtype):
    model = build(layers=5)
    ids, targets = models.tokens(2, 16, 61)
    graph = capture(
        model, {"input_ids": ids, "targets": targets},
        loss_fn=_summed_lm_loss, kernels="cpu", dtype=dtype,
    )  # fmt: skip
    inverse = {n: b for n, b in model.named_buffers() if b.is_floating_point()}
    model.to(dtype)
    for name, buffer in inverse.items():
        model.get_submodule(name.rpartition(".")[0]).register_buffer(name.split(".")[-1], buffer)
    eager = _eager_bytes(
        model,
        (ids, targets),
        lambda: _summed_lm_loss(model(input_ids=ids, use_cache=False), targets),
    )
    assert _kept_bytes(graph) == eager


def test_kept_tensors_name_their_allocator_and_operand():
    graph = capture(models.GPT(), models.tokens(2, 12, 61), loss_fn=models.token_loss)
    up = graph.by_name["layers.0.up/linear"]
    assert [(s.source, s.operand) for s in up.saved] == [(Ref("layers.0.norm2/layer_norm"), 0)]
    norm = graph.by_name["layers.0.norm1/layer_norm"]
    assert (norm.saved[0].source, norm.saved[0].operand) == (Ref("/add"), 0)
    assert [s.source for s in norm.saved[1:]] == [None, None]
    attention = graph.by_name["layers.0/scaled_dot_product_attention"]
    assert attention.saved[0].source == Ref("layers.0.qkv/linear")
    view = graph.by_name["layers.0/view"]
    assert view.alias_of == (Ref("layers.0.qkv/linear"),)
    unbind = graph.by_name["layers.0/unbind"]
    assert unbind.alias_of == (Ref("layers.0/permute"),) * 3
    embedding = graph.by_name["tokens/embedding"]
    assert embedding.saved == ()
    for node in graph.nodes:
        for saved in node.saved:
            assert saved.source is None or graph.by_name[saved.source.node].kind == "call"


def test_gpu_attention_keeps_no_scores():
    """Fused attention keeps q, k, v, its output and one log-sum-exp per query, not S x S scores."""
    length, model = 512, models.llama()
    ids = torch.zeros(2, length, dtype=torch.long)
    graph = capture(model, {"input_ids": ids, "labels": ids}, dtype=torch.bfloat16)
    attention = graph.by_name["model.layers.0.self_attn/scaled_dot_product_attention"]
    log_sum_exp = 2 * 4 * length * 4
    internal = [saved.nbytes for saved in attention.saved if saved.source is None]
    assert max(internal) == log_sum_exp
    assert sum(internal) < log_sum_exp + 64
    assert max(saved.nbytes for saved in attention.saved) == 2 * length * 32 * 2


def test_gpu_dropout_keeps_a_byte_mask():
    model = models.GPT(dropout=0.1)
    graph = capture(model, models.tokens(2, 12, 61), loss_fn=models.token_loss)
    (mask,) = graph.by_name["layers.0.dropout/dropout"].saved
    assert (mask.source, mask.nbytes) == (None, 2 * 12 * 16)


def test_flops_of_forward_and_backward():
    model = models.GPT(layers=2)
    graph = capture(model, models.tokens(2, 12, 61), loss_fn=models.token_loss)
    tokens, width, vocab = 2 * 12, 16, 61
    up = graph.by_name["layers.0.up/linear"]
    assert up.flops == 2 * tokens * width * 4 * width
    assert up.backward_flops == 2 * up.flops
    attention = graph.by_name["layers.0/scaled_dot_product_attention"]
    assert attention.flops == 2 * 2 * tokens * 12 * width
    assert attention.backward_flops == 2.5 * attention.flops
    per_layer = 2 * tokens * 12 * width * width + attention.flops
    assert sum(node.flops for node in graph.nodes) == 2 * per_layer + 2 * tokens * width * vocab
    assert sum(n.flops for n in graph.at_batch(8).nodes) == 4 * sum(n.flops for n in graph.nodes)


def test_flops_equal_the_counters_on_a_real_backward():
    from torch.utils.flop_counter import FlopCounterMode

    model = models.MLP(layers=3)
    x, y = torch.randn(2, 8), torch.randn(2, 8)
    graph = capture(model, (x, y), loss_fn=_summed_square)
    with FlopCounterMode(display=False) as counter:
        loss = _summed_square(model(x), y)
        forward = counter.get_total_flops()
        loss.backward()
    assert sum(node.flops for node in graph.nodes) == forward
    assert sum(node.backward_flops for node in graph.nodes) == counter.get_total_flops() - forward


def test_nothing_traced_stays_alive():
    model = models.GPT()
    reference = weakref.ref(model)
    capture(model, models.tokens(2, 12, 61), loss_fn=models.token_loss)
    del model
    gc.collect()
    assert reference() is None


def test_work_on_weights_alone_does_not_grow_with_the_batch():
    class Merged(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = (torch.nn.Parameter(torch.randn(8, 8)) for _ in range(2))

        def forward(self, x):
            return (x @ (self.a @ self.b)).sum()

    graph = capture(Merged(), (torch.randn(4, 8),))
    merge, apply = (node for node in graph.at_batch(20).nodes if node.flops)
    assert (merge.flops, apply.flops) == (2 * 8**3, 2 * 20 * 8**2)
    assert merge.backward_flops == 2 * merge.flops
    assert apply.backward_flops == apply.flops
