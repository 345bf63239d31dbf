"""What autograd keeps of a transformer layer from its forward to its backward, tensor by tensor.

Bytes are those of one microbatch on one rank. A product with a learning weight keeps its input;
norms, dropout, softmax and activations keep what their derivatives read. With dropout, learning
weights and written scores the list adds up to Korthikanti et al. 2022, equations 1 to 6:
``s b h (34 + 5 a s / h)`` a layer, 10 of the 34 on the tokens of the residual stream.

- Hand-written kernels (``fused``) keep an input that tensor parallelism gathers as it was, split,
  and gather it again in the backward; PyTorch keeps the gathered one. Inputs of their 8-bit
  products stay in 8 bits (Transformer Engine).
- RMSNorm in eager PyTorch computes in fp32 and keeps that copy beside the normalized values; one
  kernel (LayerNorm, fused, compiled) keeps its input, and so does litgpt's, which computes in bf16.
- Frozen weights (adapters, LoRA) need no inputs of their products, but bitsandbytes' 4-bit
  products keep theirs all the same. litgpt's adapters make queries, keys and values in one product,
  all of which stays as long as the view of its values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoplan.validation.ranks.sizes import local_heads, residual_tokens
from autoplan.validation.setups.setup import Setup
from cost_models.memory import routed_tokens

FP32_BYTES = 4
MASK_BYTES = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """One tensor that is kept.

    Attributes:
        core: between queries, keys, values and the context they make; Megatron's selective
            recompute runs these operators again.
        selected: kept by torchtitan's selective recompute.
    """

    name: str
    nbytes: float
    core: bool = False
    selected: bool = False


def activation_bytes(setup: Setup) -> int:
    """Of one element: 16 bits, also where products have 8, but for runs in fp32."""
    return 4 if setup.compute_dtype == "float32" else 2


def kept_by_layer(setup: Setup) -> float:
    """Bytes of one layer that live from forward to backward, with what is not recomputed."""
    return sum(tensor.nbytes for tensor in _kept(setup))


def recomputed_by_layer(setup: Setup) -> float:
    """Bytes of one layer that its recompute brings back within its backward."""
    if setup.recompute == "none":
        return 0.0
    kept = {tensor.name for tensor in _kept(setup)}
    return sum(tensor.nbytes for tensor in layer_tensors(setup) if tensor.name not in kept)


def layer_tensors(setup: Setup) -> tuple[Saved, ...]:
    """All that one layer keeps when nothing is recomputed."""
    return (*_attention(setup), *_feed_forward(setup))


def _kept(setup: Setup) -> tuple[Saved, ...]:
    if setup.recompute == "block":
        return (_block_input(setup),)
    if setup.recompute == "operators":
        return (_block_input(setup), *_selected(setup))
    tensors = layer_tensors(setup)
    if setup.recompute == "attention":
        return tuple(tensor for tensor in tensors if not tensor.core)
    return tensors


def _block_input(setup: Setup) -> Saved:
    hidden = residual_tokens(setup) * setup.model.hidden
    return Saved(name="block input", nbytes=activation_bytes(setup) * hidden)


def _selected(setup: Setup) -> tuple[Saved, ...]:
    """Outputs of every second product and of attention (torchtitan's ``_save_list``).

    Products come in the order queries, keys, values, projection, feed-forward: the first, third,
    ... are kept. The last one's output is kept in eager mode although no derivative reads it.
    """
    heads, kv_heads = local_heads(setup)
    width, kv_width = heads * setup.model.head_dim, kv_heads * setup.model.head_dim
    ffn, hidden = setup.model.ffn // setup.tp, setup.model.hidden
    into = [ffn, ffn] if setup.model.gated else [ffn]
    outputs = [width, kv_width, kv_width, hidden, *into, hidden]
    if setup.framework.pointwise != "eager":
        outputs.pop()
    columns = sum(outputs[::2])
    if setup.tp > 1:
        columns += 2 * hidden * residual_tokens(setup) / setup.tokens
    return (
        Saved(name="products", nbytes=activation_bytes(setup) * setup.tokens * columns),
        *(tensor for tensor in _flash(setup) if tensor.selected),
    )


def _attention(setup: Setup) -> tuple[Saved, ...]:
    heads, _ = local_heads(setup)
    width = heads * setup.model.head_dim
    if setup.attention == "flash":
        core = _flash(setup)
        if _keeps_8_bit(setup):
            core = (*core, *_product_input(setup, "projection input", width=width))
    else:
        core = (*_scores(setup), *_product_input(setup, "projection input", width=width))
    return (
        *_norm(setup, "attention"),
        *_product_input(setup, "attention input", gathered=True),
        *core,
        *_adapter(setup, width),
        *_hidden_dropout(setup, "attention"),
        *_scaled_outputs(setup, "attention", (3 * width, setup.model.hidden)),
    )


def _flash(setup: Setup) -> tuple[Saved, ...]:
    """Queries, keys, values, and what the fused kernel makes: the context and its row sums.

    PyTorch's models repeat keys and values for grouped queries; the fused kernels do not need it.
    """
    heads, kv_heads = local_heads(setup)
    repeated = heads if setup.framework.pointwise != "fused" else kv_heads
    width, kv_width = heads * setup.model.head_dim, repeated * setup.model.head_dim
    return (
        Saved(name="queries", nbytes=_activation(setup, width)),
        Saved(name="keys, values", nbytes=_activation(setup, 2 * kv_width)),
        Saved(name="context", nbytes=_activation(setup, width), selected=True),
        Saved(name="row sums", nbytes=FP32_BYTES * setup.tokens * heads, selected=True),
    )


def _scores(setup: Setup) -> tuple[Saved, ...]:
    heads, kv_heads = local_heads(setup)
    width, kv_width = heads * setup.model.head_dim, kv_heads * setup.model.head_dim
    scores = heads * setup.tokens * setup.seq_len
    tensors = [
        Saved(name="queries, keys", nbytes=_activation(setup, width + kv_width)),
        Saved(name="values", nbytes=_activation(setup, kv_width)),
        Saved(name="softmax", nbytes=activation_bytes(setup) * scores, core=True),
    ]
    if setup.framework.dropout:
        tensors += [
            Saved(name="score dropout mask", nbytes=MASK_BYTES * scores, core=True),
            Saved(name="score dropout", nbytes=activation_bytes(setup) * scores, core=True),
        ]
    return tuple(tensors)


def _feed_forward(setup: Setup) -> tuple[Saved, ...]:
    inner = _experts(setup) if setup.model.experts else _dense(setup)
    return (*_norm(setup, "feed-forward"), *inner, *_hidden_dropout(setup, "feed-forward"))


def _dense(setup: Setup) -> tuple[Saved, ...]:
    ffn, hidden = setup.model.ffn // setup.tp, setup.model.hidden
    into = (ffn, ffn) if setup.model.gated else (ffn,)
    return (
        *_product_input(setup, "feed-forward input", gathered=True),
        *_activation_function(setup, setup.tokens * ffn),
        *_product_input(setup, "activated", width=ffn),
        *_scaled_outputs(setup, "feed-forward", (*into, hidden)),
    )


def _activation_function(setup: Setup, elements: float) -> tuple[Saved, ...]:
    """Inputs of GELU, or of SwiGLU and, where its two operators run apart, what is between."""
    between = setup.model.gated and setup.framework.pointwise == "eager"
    count = (2 if setup.model.gated else 1) + between
    return (Saved(name="activation inputs", nbytes=count * activation_bytes(setup) * elements),)


def tokens_of_experts(setup: Setup) -> float:
    """Tokens that a rank's experts see, each as often as it is routed there; all loads equal."""
    return routed_tokens(
        setup.tokens * setup.ep,
        experts_per_token=setup.model.experts_per_token,
        expert_ranks=setup.ep,
    )


def _experts(setup: Setup) -> tuple[Saved, ...]:
    """Router, tokens as sent to experts, and this rank's experts on an equal share of them."""
    model = setup.model
    routed = tokens_of_experts(setup)
    ffn = model.expert_ffn // setup.tp
    return (
        *_product_input(setup, "router input"),
        Saved(name="router", nbytes=2 * FP32_BYTES * setup.tokens * model.experts),
        Saved(name="expert inputs", nbytes=activation_bytes(setup) * routed * model.hidden),
        *_activation_function(setup, routed * ffn),
        Saved(name="activated", nbytes=activation_bytes(setup) * routed * ffn),
        Saved(name="expert outputs", nbytes=activation_bytes(setup) * routed * model.hidden),
    )


def kept_by_embedding(setup: Setup) -> float:
    """Of one microbatch: the dropout's mask (Korthikanti et al. 2022, section 4.3)."""
    return sum(tensor.nbytes for tensor in _hidden_dropout(setup, "embedding"))


def kept_by_head(setup: Setup) -> float:
    """Of one microbatch: what the last norm and the head's product keep, without logits.

    Compilers are given the blocks, so that the last norm runs in eager mode.
    """
    if setup.framework.pointwise == "compiled":
        setup = replace(setup, framework=replace(setup.framework, pointwise="eager"))
    tensors = (*_norm(setup, "last"), *_product_input(setup, "head input", gathered=True))
    return sum(tensor.nbytes for tensor in tensors)


def _norm(setup: Setup, place: str) -> tuple[Saved, ...]:
    elements = residual_tokens(setup) * setup.model.hidden
    if setup.model.biases or setup.framework.pointwise != "eager":
        return (Saved(name=f"{place} norm input", nbytes=activation_bytes(setup) * elements),)
    if setup.tuning == "all":
        kept = FP32_BYTES + activation_bytes(setup)
    else:
        kept = activation_bytes(setup) * (2 if setup.tuning == "adapter-v2" else 1)
    return (Saved(name=f"{place} norm", nbytes=kept * elements),)


def _product_input(
    setup: Setup, name: str, *, width: int | None = None, gathered: bool = False
) -> tuple[Saved, ...]:
    """The input of products that share it: ``hidden`` wide unless ``width`` is given.

    Args:
        gathered: tensor parallelism gathers it from the residual stream.
    """
    is_split = gathered and setup.framework.pointwise == "fused"
    tokens = residual_tokens(setup) if is_split else setup.tokens
    elements = tokens * (width or setup.model.hidden)
    if setup.tuning != "all" and not setup.quantised:
        return ()
    element_bytes = 1 if _keeps_8_bit(setup) else activation_bytes(setup)
    return (Saved(name=name, nbytes=element_bytes * elements),)


def _keeps_8_bit(setup: Setup) -> bool:
    return setup.compute_dtype.startswith("float8") and setup.framework.pointwise == "fused"


def _adapter(setup: Setup, width: int) -> tuple[Saved, ...]:
    """What LoRA keeps beside queries, keys and values, or LLaMA-Adapter beside the context.

    LoRA's down-projection keeps its input, after a dropout with its mask; its updates of queries
    and values are kept once more where they are put at their places (``index_copy``).
    """
    if setup.tuning == "all":
        return ()
    joint = Saved(name="joint product", nbytes=_activation(setup, 2 * width))
    if setup.tuning == "lora":
        dropped = (activation_bytes(setup) + MASK_BYTES) * setup.tokens * setup.model.hidden
        updates = _activation(setup, 2 * width)
        return (joint, Saved(name="low-rank updates", nbytes=dropped + updates))
    return (joint, Saved(name="adapted context", nbytes=_activation(setup, width)))


def _scaled_outputs(setup: Setup, place: str, widths: tuple[int, ...]) -> tuple[Saved, ...]:
    """LLaMA-Adapter v2 scales and shifts the output of every product, and keeps it."""
    if setup.tuning != "adapter-v2":
        return ()
    return (Saved(name=f"{place} outputs", nbytes=_activation(setup, sum(widths))),)


def _hidden_dropout(setup: Setup, place: str) -> tuple[Saved, ...]:
    if not setup.framework.dropout:
        return ()
    elements = residual_tokens(setup) * setup.model.hidden
    return (Saved(name=f"{place} dropout mask", nbytes=MASK_BYTES * elements),)


def _activation(setup: Setup, width: int) -> float:
    return activation_bytes(setup) * setup.tokens * width
