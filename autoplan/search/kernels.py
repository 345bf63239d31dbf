"""The kernels of an operator under a strategy: what one rank is asked to run for it.

Products become kernels with the shapes of the rank's shards, and so does attention
(``attention_kernels``); the backward of a product is one more product for each factor that learns.
Convolutions are implicit products. Lookups touch the rows that are read (``lookup_kernels``).
Experts are products of as many rows as tokens are routed to each, the same to all.
Dropout streams what its mask is made of besides (``runtime.dropout_mask``), and a BatchNorm that
takes statistics what its steps pass on (``runtime.batch_norm``).
Everything else streams what it reads and writes, twice as much in the backward (the same tensors
and one gradient in, the others out).

Gradients of parameters can be made later than those of activations. A product makes each by itself;
what streams makes all of its gradients at once, so they are a parameter's only if no activation
learns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.search.attention_kernels import attention_work
from autoplan.search.lookup_kernels import LOOKUPS, lookup_work
from autoplan.sharding.placement import local_shape
from autoplan.sharding.rules import is_attention, recurrent
from autoplan.sharding.rules.batch_norm import takes_statistics
from autoplan.sharding.strategies import Strategy
from autoplan.trace.graph import DTYPE_BYTES, OpNode, TensorMeta
from cost_models.recurrent import Recurrence
from cost_models.work import Contraction, Gemm, Streaming, Work

_FIRST_FACTOR = {
    "aten.linear.default": 0,
    "aten.matmul.default": 0,
    "aten.mm.default": 0,
    "aten.bmm.default": 0,
    "aten.addmm.default": 1,
    "aten.baddbmm.default": 1,
}
_CONVOLUTIONS = {
    f"aten.conv{places}d.{overload}" for places in (1, 2, 3) for overload in ("default", "padding")
}
_EXPERTS = "autoplan.experts.default"
_EXPERTS_PASSES = 14  # sort 2, ends, rows, gathers 2, activation, products 2, adding 4, cast
LEAST_QUERIES = 512
"""Of a rank, where queries are split."""
_DROPOUT = "aten.dropout.default"
_CLASS_LOSS = "aten.cross_entropy_loss.default"  # its backward makes the shares of classes first
_DROPOUT_KERNELS = 30  # most of them on single rows and columns
_DROPOUT_BYTES = 8 + 16 + 9 + 1  # of an element: hash, square it in place, compare, read the mask
_HASH_BYTES = 8
_WIDE_BYTES = 4  # of an element in the type that statistics are taken in
_NORM_KERNELS = 20  # most of them on single channels


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernels:
    """What one rank runs for one operator and one microbatch; the backward if any output learns.

    ``backward_weight`` is the part of the backward that makes gradients of parameters;
    ``inner_bytes`` are of what lives within the call only, beside what is kept for the backward.
    """

    forward: tuple[Work, ...]
    backward: tuple[Work, ...]
    backward_weight: tuple[Work, ...] = ()
    inner_bytes: float = 0.0


def kernels_of(
    node: OpNode,
    read: Sequence[TensorMeta],
    moved: float,
    strategy: Strategy,
    ranks: int,
    stored: Sequence[bool] = (),
) -> Kernels:
    """The kernels of a call on one rank.

    Args:
        read: the tensors of ``node.operands``, whole, in the same order.
        moved: bytes that the rank reads and writes, a tensor that is read twice counted once.
        ranks: of the axis that the strategy splits over.
        stored: which of the operands are parameters; none by default.
    """
    stored = stored or (False,) * len(read)
    share = _weight_share(read, stored)
    if node.target == _DROPOUT:
        shape = local_shape(node.outputs[0].shape, strategy.outputs[0], ranks)
        return _dropout(math.prod(shape), moved, share)
    if takes_statistics(node):
        shape = local_shape(node.outputs[0].shape, strategy.outputs[0], ranks)
        return _batch_norm(math.prod(shape), DTYPE_BYTES[node.outputs[0].dtype])
    if node.target in LOOKUPS:
        work = lookup_work(node, read, strategy, ranks)
        return Kernels(
            forward=work.forward,
            backward=work.backward,
            backward_weight=work.backward * (share == 1),
        )
    if not node.flops:
        backward = (Streaming(bytes=2 * moved),)
        return Kernels(
            forward=(Streaming(bytes=moved),),
            backward=backward,
            backward_weight=backward * (share == 1),
            inner_bytes=moved if node.target == _CLASS_LOSS else 0.0,
        )
    call = _Call(
        node=node,
        read=read,
        stored=stored,
        shapes=tuple(
            local_shape(meta.shape, port.placement, ranks)
            for meta, port in zip(read, strategy.inputs, strict=True)
        ),
        output=local_shape(node.outputs[0].shape, strategy.outputs[0], ranks),
    )
    if is_attention(node.target):
        work = attention_work(node, read, call.shapes)
        return Kernels(forward=work.forward, backward=work.backward, inner_bytes=work.inner_bytes)
    if node.target in _FIRST_FACTOR:
        return _product(call, _FIRST_FACTOR[node.target])
    if node.target in _CONVOLUTIONS:
        return _convolution(call)
    if node.target in recurrent.RULES:
        return _recurrent(call)
    if node.target == _EXPERTS:
        return _experts(call, ranks if strategy.splits_work else 1)
    return _contraction(node, moved, ranks if strategy.splits_work else 1, share)


def is_worth_splitting(node: OpNode, strategy: Strategy, ranks: int) -> bool:
    """Whether a rank's share of a call is enough to be offered.

    Ranks that share the queries of attention gather all keys and values, each byte of which meets
    as many operations as there are queries: below some hundreds messages outweigh what is saved.
    """
    if not is_attention(node.target):
        return True
    shape = node.outputs[0].shape
    return local_shape(shape, strategy.outputs[0], ranks)[-2] >= min(LEAST_QUERIES, shape[-2])


def _dropout(elements: int, moved: float, share: float) -> Kernels:
    """A hash of every element's place becomes the mask, which the backward reads again."""
    backward = (Streaming(bytes=moved + elements),)
    return Kernels(
        forward=(Streaming(bytes=moved + _DROPOUT_BYTES * elements, kernels=_DROPOUT_KERNELS),),
        backward=backward,
        backward_weight=backward * (share == 1),
        inner_bytes=_HASH_BYTES * elements,
    )


def _batch_norm(elements: int, width: int) -> Kernels:
    """Passes over the activations, in float32 at least: to it and back from narrower ones.

    Forward: statistics, and each written the difference, the product and the sum. Backward: the
    difference and the product again, two sums, and the steps to the gradient.

    Args:
        width: bytes of an element.
    """
    wide = max(width, _WIDE_BYTES)
    casts = 3 * (width + wide) if width < wide else 0
    return Kernels(
        forward=(Streaming(bytes=(7 * wide + casts) * elements, kernels=_NORM_KERNELS),),
        backward=(Streaming(bytes=(18 * wide + casts) * elements, kernels=_NORM_KERNELS),),
        inner_bytes=3 * wide * elements,
    )


def _weight_share(read: Sequence[TensorMeta], stored: Sequence[bool]) -> float:
    """The share of parameters among the operands that learn."""
    learning = [
        is_stored for meta, is_stored in zip(read, stored, strict=True) if meta.requires_grad
    ]
    return sum(learning) / len(learning) if learning else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """A call on one rank: its node, what it reads (whole), and the rank's shapes."""

    node: OpNode
    read: Sequence[TensorMeta]
    stored: Sequence[bool]
    shapes: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]

    @property
    def output_bytes(self) -> int:
        return DTYPE_BYTES[self.node.outputs[0].dtype]

    def gemm(self, batch: int, m: int, n: int, k: int) -> Gemm:
        dtype = self.node.outputs[0].dtype
        return Gemm(m=m, n=n, k=k, batch=batch, dtype=dtype, output_bytes=self.output_bytes)

    def kernels(self, forward: Gemm, first: int, gradients: Sequence[Gemm]) -> Kernels:
        """A product of operands ``first`` and the next, with the gradients of both.

        The gradient of anything else, a bias, sums the output's gradient.
        """
        added = Streaming(bytes=math.prod(self.output) * self.output_bytes)
        order = (first, first + 1, *range(first), *range(first + 2, len(self.read)))
        works = dict(zip(order, gradients, strict=False))
        learning = [number for number in order if self.read[number].requires_grad]
        return Kernels(
            forward=(forward,),
            backward=tuple(works.get(number, added) for number in learning),
            backward_weight=tuple(
                works.get(number, added) for number in learning if self.stored[number]
            ),
        )


def _product(call: _Call, first: int) -> Kernels:
    """(m, k) x (k, n), as often as the second factor has a batch; a weight is (n, k)."""
    left, right = call.shapes[first : first + 2]
    k = left[-1]
    n = 1 if len(right) == 1 else right[-2 if call.node.target == "aten.linear.default" else -1]
    rows = math.prod(call.output) // n
    m = rows if len(right) <= 2 else (left[-2] if len(left) > 1 else 1)
    batch = rows // m
    gradients = call.gemm(batch, m, k, n), call.gemm(batch, k, n, m)
    return call.kernels(call.gemm(batch, m, n, k), first, gradients)


def _convolution(call: _Call) -> Kernels:
    """An implicit product: places by output channels, summed over input channels and window."""
    weight = call.shapes[1]
    groups = call.shapes[0][1] // weight[1]
    channels, window = weight[0] // groups, math.prod(weight[1:])
    places = call.output[0] * math.prod(call.output[2:])
    gradients = (
        call.gemm(groups, places, window, channels),
        call.gemm(groups, window, channels, places),
    )
    return call.kernels(call.gemm(groups, places, channels, window), 0, gradients)


def _recurrent(call: _Call) -> Kernels:
    """Layers and directions one after the other; each has a matrix for its input and its state."""
    first = bool(call.node.args[-1])
    samples, steps = call.shapes[0][:2] if first else call.shapes[0][1::-1]
    matrices = [number for number, shape in enumerate(call.shapes) if number and len(shape) == 2]
    cells = [
        Recurrence(
            samples=samples,
            steps=steps,
            rows=call.shapes[of_input][0],
            inputs=call.shapes[of_input][1],
            width=call.shapes[of_state][1],
            dtype=call.node.outputs[0].dtype,
        )
        for of_input, of_state in zip(matrices[::2], matrices[1::2], strict=True)
    ]
    of_weights = tuple(work for cell in cells for work in cell.of_weights())
    return Kernels(
        forward=tuple(work for cell in cells for work in cell.forward()),
        backward=(
            *(work for cell in cells for work in cell.backward(of_input=True)),
            *of_weights,
        ),
        backward_weight=of_weights * all(call.stored[number] for number in matrices),
    )


def _experts(call: _Call, split: int) -> Kernels:
    """The layer of ``trace.experts``, with as many tokens routed to each expert."""
    index, down = call.shapes[1], call.shapes[4]
    experts, hidden, inner = down
    both = call.shapes[3][1]
    pairs = -(-math.prod(index) // split)
    seen = max(1, min(experts, pairs))
    each = -(-pairs // seen)
    tokens, gate_up, out = (call.read[operand].requires_grad for operand in (0, 3, 4))
    of_gate_up = (call.gemm(seen, both, hidden, each),) * gate_up
    of_down = (call.gemm(seen, hidden, inner, each),) * out
    passes, passes_back, inner_bytes = _around_experts(call, pairs)
    return Kernels(
        forward=(
            passes,
            call.gemm(seen, each, both, hidden),
            call.gemm(seen, each, hidden, inner),
        ),
        backward=(
            passes_back,
            *(call.gemm(seen, each, inner, hidden),) * (tokens or gate_up),
            *(call.gemm(seen, each, hidden, both),) * tokens,
            *of_gate_up,
            *of_down,
        ),
        backward_weight=of_gate_up * call.stored[3] + of_down * call.stored[4],
        inner_bytes=inner_bytes,
    )


def _around_experts(call: _Call, pairs: int) -> tuple[Streaming, Streaming, float]:
    """What the operators around the products read and write, and the most that lives at once.

    Forward: rows of ``pairs`` of a token and an expert are gathered; an activation and a product
    with it; shares taken, and added up by token in the dtype of the shares if that is wider.
    Backward: the same the other way, the shares' own gradient, and the gate's halves joined.
    """
    down, results = call.shapes[4], math.prod(call.output)
    width = call.output_bytes
    wide = max(width, DTYPE_BYTES[call.read[2].dtype])
    outer, inner = pairs * down[1], pairs * down[2]
    forward = width * (3 * outer + 5 * inner + results) + wide * (2 * outer + 4 * results)
    backward = width * (4 * outer + 13 * inner + results) + wide * (8 * outer + results)
    lives = max((3 * wide + width) * outer + wide * results, 4 * width * inner)
    return (
        Streaming(bytes=forward, kernels=_EXPERTS_PASSES),
        Streaming(bytes=backward, kernels=_EXPERTS_PASSES),
        lives,
    )


def _contraction(node: OpNode, moved: float, split: int, share: float) -> Kernels:
    dtype = node.outputs[0].dtype

    def kernel(flops: float, nbytes: float) -> Contraction:
        return Contraction(flops=flops / split, bytes=nbytes, dtype=dtype)

    backward = kernel(node.backward_flops, 2 * moved)
    weight = kernel(share * node.backward_flops, share * 2 * moved)
    return Kernels(
        forward=(kernel(node.flops, moved),),
        backward=(backward,),
        backward_weight=(weight,) * (share > 0),
    )
