"""The list of saved tensors against what autograd really saves of blocks written in PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from autoplan.validation.memory.activations import kept_by_layer, layer_tensors
from autoplan.validation.ranks.learned_weights import learned_weights
from tests.unit.memory_setups import FSDP2, LITGPT, LLAMA2_7B, LLAMA2_13B, MEGATRON, llama, setup

HIDDEN, HEADS, FFN, LENGTH, BATCH = 128, 4, 352, 64, 2
SIZE = HIDDEN // HEADS
BF16 = {"dtype": torch.bfloat16}
BLOCK = llama(1, HIDDEN, HEADS, HEADS, FFN)


class Kept:
    """Bytes of the distinct storages that are saved, without weights and per-token scalars."""

    def __init__(self, weights):
        self._ignored = {weight.untyped_storage().data_ptr() for weight in weights}
        self._storages = {}

    def __enter__(self):
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error):
        self._hooks.__exit__(*error)

    def _pack(self, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._ignored:
            self._storages[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    @property
    def nbytes(self):
        per_token = 4 * BATCH * LENGTH
        return sum(nbytes for nbytes, _ in self._storages.values() if nbytes > per_token)


def rms_norm(x, weight):
    """As torch.nn.RMSNorm runs it in steps: in fp32, and back before the weight."""
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (wide * scale).to(x.dtype) * weight


def rotate(x, turns):
    """In complex numbers, as torchtitan does; the turns are constant."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)


def heads(x):
    return x.view(BATCH, LENGTH, HEADS, SIZE).transpose(1, 2)


class Llama:
    def __init__(self, ffn=FFN):
        def weight(*shape):
            return torch.randn(*shape, **BF16, requires_grad=True)

        self.norms = weight(HIDDEN), weight(HIDDEN)
        self.q, self.k, self.v, self.o = (weight(HIDDEN, HIDDEN) for _ in range(4))
        self.w1, self.w3, self.w2 = weight(ffn, HIDDEN), weight(ffn, HIDDEN), weight(HIDDEN, ffn)
        self.turns = torch.polar(torch.ones(LENGTH, SIZE // 2), torch.rand(LENGTH, SIZE // 2))

    @property
    def constants(self):
        products = (self.q, self.k, self.v, self.o, self.w1, self.w3, self.w2)
        return (*self.norms, *products, self.turns)

    def __call__(self, x):
        n = rms_norm(x, self.norms[0])
        q, k, v = (F.linear(n, weight) for weight in (self.q, self.k, self.v))
        q, k = rotate(heads(q), self.turns), rotate(heads(k), self.turns)
        attended = F.scaled_dot_product_attention(q, k, heads(v), is_causal=True)
        x = x + F.linear(attended.transpose(1, 2).reshape(BATCH, LENGTH, HIDDEN), self.o)
        n = rms_norm(x, self.norms[1])
        return x + F.linear(F.silu(F.linear(n, self.w1)) * F.linear(n, self.w3), self.w2)


def block_input():
    return torch.randn(BATCH, LENGTH, HIDDEN, **BF16, requires_grad=True)


def run_of(framework, **changes):
    return setup(BLOCK, framework, seq_len=LENGTH, microbatch=BATCH, **changes)


def without_row_sums(run):
    """One fp32 number a token and head, which the real count leaves out."""
    return sum(tensor.nbytes for tensor in layer_tensors(run) if tensor.name != "row sums")


def test_eager_llama_block_keeps_what_the_list_says():
    block = Llama()
    with Kept(block.constants) as kept:
        out = block(block_input())
    assert out.requires_grad
    row_sums = 4 * BATCH * LENGTH * HEADS
    assert kept.nbytes - row_sums == without_row_sums(run_of(FSDP2))


def test_runs_in_fp32_keep_twice_the_bytes_of_products():
    half, single = (run_of(MEGATRON, compute_dtype=dtype) for dtype in ("bfloat16", "float32"))
    row_sums, masks = 4 * BATCH * LENGTH * HEADS, 2 * BATCH * LENGTH * HIDDEN
    fixed = row_sums + masks
    assert kept_by_layer(single) - fixed == 2 * (kept_by_layer(half) - fixed)


def test_recomputed_blocks_keep_their_input():
    block = Llama()
    with Kept(block.constants) as kept:
        checkpoint(block, block_input(), use_reentrant=False)
    assert kept.nbytes == kept_by_layer(run_of(FSDP2, recompute="block"))


def test_selective_recompute_keeps_every_second_product():
    """The policy of torchtitan, counted through the storages that stay alive."""
    saved = []

    def policy(context, op, *args, **kwargs):
        products = policy.products = policy.products + (op == torch.ops.aten.mm.default)
        is_attention = "scaled_dot_product" in str(op)
        if (op == torch.ops.aten.mm.default and products % 2) or is_attention:
            if not context.is_recompute:
                saved.append((op, args))
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    policy.products = 0
    block = Llama()
    checkpoint(
        block,
        block_input(),
        use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(policy),
    )
    tokens, kept = BATCH * LENGTH, 0
    for op, args in saved:
        columns = args[1].shape[1] if op == torch.ops.aten.mm.default else HIDDEN
        kept += 2 * tokens * columns
    row_sums = 4 * tokens * HEADS
    inputs = 2 * tokens * HIDDEN
    run = run_of(FSDP2, recompute="operators")
    assert kept_by_layer(run) == inputs + kept + row_sums


def test_learned_weights_are_those_that_litgpt_prints():
    """litgpt's resource tables, column "trainable parameters"."""
    assert learned_weights(setup(LLAMA2_7B, LITGPT, tuning="lora")) == 4_194_304
    assert learned_weights(setup(LLAMA2_13B, LITGPT, tuning="lora")) == 6_553_600
    assert learned_weights(setup(LLAMA2_7B, LITGPT, tuning="adapter")) == 1_229_760
    assert learned_weights(setup(LLAMA2_7B, LITGPT, tuning="adapter-v2")) == 4_279_744


@pytest.mark.parametrize("framework", [FSDP2, MEGATRON])
@pytest.mark.parametrize("recompute", ["attention", "operators", "block"])
def test_recompute_never_keeps_more(framework, recompute):
    plain = run_of(framework, attention="scores")
    less = run_of(framework, attention="scores", recompute=recompute)
    assert kept_by_layer(less) <= kept_by_layer(plain)
