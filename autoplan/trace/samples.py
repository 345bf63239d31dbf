"""What running an operator on small random batches shows: samples apart, numbers drawn at random.

For an operator that autoplan has no rule for, nothing else tells. It is run on the CPU, on a batch
and on two pieces of it: results and gradients of the pieces, put side by side, must be those of the
batch. Results without a batch must be the sum of those of the pieces. One piece is much larger in
value than the other, so that what passes between samples shows. What cannot be run here, draws at
random, or is too large to try, is not shown, nor what gives nothing but zeros: it may want numbers
of a kind that was not drawn. Calls that differ in names and in the batch alone are tried once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import count
from typing import Any

import torch
from torch import Tensor

from autoplan.trace.graph import Arg, BatchInt, OpNode, Ref, TensorMeta, TorchValue
from autoplan.trace.trials import is_close, leaf

_PIECES = (2, 3)
_SCALES = ((1.0, 1.0), (1.0, 30.0), (30.0, 1.0))
_MAX_ELEMENTS = 2**24


def keeps_samples_apart(node: OpNode, operands: Sequence[TensorMeta], batch: int) -> bool:
    """Whether a call was seen to give the same on pieces of a batch as on all of it.

    Args:
        operands: metas of ``node.operands``, written for ``batch``.
        batch: by which sizes along the batch are multiples.
    """
    return _keeps_apart(*_of_one_sample(node, operands, batch))


def draws_at_random(node: OpNode, operands: Sequence[TensorMeta], batch: int) -> bool:
    """Whether a call was seen to give something else when it ran again on the same operands.

    Args:
        operands, batch: as for ``keeps_samples_apart``.
    """
    return _draws(*_of_one_sample(node, operands, batch))


@lru_cache(maxsize=1024)
def _keeps_apart(node: OpNode, operands: tuple[TensorMeta, ...]) -> bool:
    if not _may_be_tried(node, operands):
        return False
    trial = _Trial(node, operands)
    with suppress(Exception), torch.random.fork_rng(devices=[]), torch.enable_grad():
        return all(trial.holds(seed, scales) for seed, scales in enumerate(_SCALES))
    return False


@lru_cache(maxsize=1024)
def _draws(node: OpNode, operands: tuple[TensorMeta, ...]) -> bool:
    if not _may_be_tried(node, operands):
        return False
    trial = _Trial(node, operands)
    with suppress(Exception), torch.random.fork_rng(devices=[]), torch.no_grad():
        return not trial.repeats()
    return False


def _may_be_tried(node: OpNode, operands: tuple[TensorMeta, ...]) -> bool:
    tensors = (*operands, *node.outputs)
    if any(len(meta.batch_dims) > 1 for meta in tensors) or _has_batch_int(node):
        return False
    return sum(meta.numel for meta in tensors) * sum(_PIECES) <= _MAX_ELEMENTS


def _of_one_sample(
    node: OpNode, operands: Sequence[TensorMeta], batch: int
) -> tuple[OpNode, tuple[TensorMeta, ...]]:
    """The call at batch one, with its tensors named by their position."""
    positions = count()

    def numbered(value: Arg) -> Arg:
        if isinstance(value, tuple):
            return tuple(map(numbered, value))
        return Ref(str(next(positions))) if isinstance(value, Ref) else value

    def at_one(meta: TensorMeta) -> TensorMeta:
        sizes = enumerate(meta.shape)
        shape = tuple(n // batch if dim in meta.batch_dims else n for dim, n in sizes)
        return replace(meta, shape=shape)

    call = OpNode(
        name="",
        kind="call",
        target=node.target,
        args=tuple(map(numbered, node.args)),
        kwargs=tuple((name, numbered(value)) for name, value in node.kwargs),
        outputs=tuple(map(at_one, node.outputs)),
    )
    return call, tuple(map(at_one, operands))


def _has_batch_int(node: OpNode) -> bool:
    """Arguments that count samples keep the count of the whole batch on a piece of it."""

    def found(value: Arg) -> bool:
        return isinstance(value, BatchInt) or (isinstance(value, tuple) and any(map(found, value)))

    return any(map(found, (*node.args, *(value for _, value in node.kwargs))))


class _Trial:
    """One call at batch one, to be run on random operands."""

    def __init__(self, node: OpNode, operands: Sequence[TensorMeta]) -> None:
        self.node = node
        self.operands = operands
        self.call: Any = torch.ops
        for part in node.target.split("."):
            self.call = getattr(self.call, part)

    def repeats(self) -> bool:
        """Whether it gives the same again, under another seed."""
        torch.manual_seed(0)
        given = [self._random(meta, sum(_PIECES), 1.0) for meta in self.operands]
        first = self._run([tensor.clone() for tensor in given])
        torch.manual_seed(1)
        return all(map(is_close, self._run(given), first))

    def holds(self, seed: int, scales: Sequence[float]) -> bool:
        torch.manual_seed(seed)
        pieces = [
            [self._random(meta, samples, scale) for meta in self.operands]
            for samples, scale in zip(_PIECES, scales, strict=True)
        ]
        for index, meta in enumerate(self.operands):
            if not meta.batch_dims:
                pieces[1][index] = pieces[0][index]
        whole = [
            torch.cat(parts, meta.batch_dims[0]) if meta.batch_dims else parts[0]
            for meta, parts in zip(self.operands, zip(*pieces, strict=True), strict=True)
        ]
        whole_leaves = _leaves(whole, self.operands)
        part_leaves = [_leaves(piece, self.operands) for piece in pieces]
        results = self._run(whole_leaves)
        parts = [self._run(leaves) for leaves in part_leaves]
        joined = [_joined(meta, made) for meta, made in self._outputs(zip(*parts, strict=True))]
        if any(made.requires_grad and not made.count_nonzero() for made in results):
            return False
        if not all(map(is_close, joined, results)):
            return False
        given = [torch.randn_like(x) if x.is_floating_point() else x for x in results]
        _backward(results, given)
        for made, leaves in zip(parts, self._shares(given), strict=True):
            _backward(made, leaves)
        return all(
            is_close(
                _joined(meta, [_gradient(leaves[at]) for leaves in part_leaves]), _gradient(leaf)
            )
            for at, (meta, leaf) in enumerate(zip(self.operands, whole_leaves, strict=True))
            if leaf.requires_grad
        )

    def _random(self, meta: TensorMeta, samples: int, scale: float) -> Tensor:
        shape = [
            size * samples if dim in meta.batch_dims else size
            for dim, size in enumerate(meta.shape)
        ]
        dtype = getattr(torch, meta.dtype)
        if dtype is torch.bool:
            return torch.rand(shape) < 0.5
        if not dtype.is_floating_point:
            return torch.randint(2, shape, dtype=dtype)
        return torch.randn(shape, dtype=torch.promote_types(dtype, torch.float32)) * scale

    def _run(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        given = iter(leaves)
        args = [_filled(value, given) for value in self.node.args]
        kwargs = {name: _filled(value, given) for name, value in self.node.kwargs}
        made = self.call(*args, **kwargs)
        return [made] if isinstance(made, Tensor) else list(made)

    def _outputs(self, values: Any) -> Iterator[tuple[TensorMeta, Any]]:
        return zip(self.node.outputs, values, strict=True)

    def _shares(self, given: Sequence[Tensor]) -> Iterator[list[Tensor]]:
        """Of the gradients of results, what each piece gets."""
        start = 0
        for samples in _PIECES:
            yield [
                gradient.narrow(
                    meta.batch_dims[0],
                    start * meta.shape[meta.batch_dims[0]],
                    samples * meta.shape[meta.batch_dims[0]],
                )
                if meta.batch_dims
                else gradient
                for meta, gradient in self._outputs(given)
            ]
            start += samples


def _filled(value: Arg, given: Iterator[Tensor]) -> Any:
    if isinstance(value, Ref):
        return next(given)
    if isinstance(value, tuple):
        return [_filled(item, given) for item in value]
    if isinstance(value, TorchValue):
        return torch.device("cpu") if value.kind == "device" else getattr(torch, value.name)
    return value


def _leaves(tensors: Sequence[Tensor], metas: Sequence[TensorMeta]) -> list[Tensor]:
    return [
        leaf(tensor, learns=meta.requires_grad) for tensor, meta in zip(tensors, metas, strict=True)
    ]


def _joined(meta: TensorMeta, parts: Sequence[Tensor]) -> Tensor:
    return (
        torch.cat(list(parts), meta.batch_dims[0]) if meta.batch_dims else sum(parts[1:], parts[0])
    )


def _backward(results: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    flows = [(x, grad) for x, grad in zip(results, given, strict=True) if x.requires_grad]
    if flows:
        torch.autograd.backward([x for x, _ in flows], [grad for _, grad in flows])


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
