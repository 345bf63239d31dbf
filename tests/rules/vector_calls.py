"""Examples of operators that compare vectors or classes: similarities, margins, alignments."""

from __future__ import annotations

import torch

import autoplan.trace.ctc  # noqa: F401  (registers its operator)
from tests.rules.draw import Draw
from tests.rules.oracle import Example


def _reduction(draw: Draw) -> int:
    return draw.of(0, 2, 1)


def _signs(draw: Draw, *shape: int) -> torch.Tensor:
    return torch.where(draw.bools(*shape), 1.0, -1.0).double()


def similarity(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 3)
    other = draw.of(shape, draw.broadcast(shape))
    return draw.call(target, draw.floats(*shape), draw.floats(*other), draw.dim(shape))


def distance(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 3)
    other = draw.of(shape, draw.broadcast(shape))
    keeps = draw.of(True, False)
    return draw.call(target, draw.floats(*shape), draw.floats(*other), 2.0, 1e-6, keeps)


def cosine_embedding(draw: Draw, target: str) -> Example:
    lead = draw.shape(0, 1)
    first, second = (draw.floats(*lead, draw.ranks) for _ in range(2))
    return draw.call(target, first, second, _signs(draw, *lead), 0.1, _reduction(draw))


def triplet(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 3)
    broadcast = [draw.of(size, 1) for size in shape]
    points = draw.floats(*shape), draw.floats(*shape), draw.floats(*broadcast)
    return draw.call(target, *points, 1.0, 2.0, 1e-6, draw.of(True, False), _reduction(draw))


def ranking(draw: Draw, target: str) -> Example:
    shape = draw.shape()
    signs = _signs(draw, *draw.broadcast(shape))
    return draw.call(target, draw.floats(*shape), draw.floats(*shape), signs, 0.5, _reduction(draw))


def hinge(draw: Draw, target: str) -> Example:
    shape = draw.shape()
    return draw.call(target, draw.floats(*shape), _signs(draw, *shape), 1.0, _reduction(draw))


def counts(draw: Draw, target: str) -> Example:
    shape = draw.shape()
    given = draw.integers(4, *shape).double()
    log_input, full = draw.of(True, False), draw.of(True, False)
    return draw.call(target, draw.positive(*shape), given, log_input, full, 1e-8, _reduction(draw))


def margins(draw: Draw, target: str) -> Example:
    lead, classes = draw.shape(0, 1), 2 * draw.ranks
    weight = draw.of(None, draw.positive(classes).detach())
    given = draw.integers(classes, *lead)
    reduction = _reduction(draw)
    return draw.call(target, draw.floats(*lead, classes), given, 1, 1.0, weight, reduction)


def label_margins(draw: Draw, target: str) -> Example:
    """The right classes come first, up to the number -1."""
    lead, classes = draw.shape(0, 1), 2 * draw.ranks
    given = torch.rand(*lead, classes).argsort(-1)
    given[..., 2] = -1
    return draw.call(target, draw.floats(*lead, classes), given, _reduction(draw))


def alignments(draw: Draw, target: str) -> Example:
    """Samples of other lengths, none without a target."""
    steps, samples, classes = 6, draw.size(), 4
    scores = draw.floats(steps, samples, classes).log_softmax(-1).detach().requires_grad_()
    rows = draw.integers(classes - 1, samples, 3) + 1
    lengths = draw.integers(2, samples) + 5, draw.integers(3, samples) + 1
    return draw.call(target, scores, rows, *lengths, 0, True)


def norms(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    dims = draw.of([draw.dim(shape)], None)
    return draw.call(target, draw.floats(*shape), None, dims, draw.of(True, False))


CALLS = {
    "aten.cosine_similarity.default": similarity,
    "aten.pairwise_distance.default": distance,
    "aten.cosine_embedding_loss.default": cosine_embedding,
    "aten.triplet_margin_loss.default": triplet,
    "aten.margin_ranking_loss.default": ranking,
    "aten.hinge_embedding_loss.default": hinge,
    "aten.poisson_nll_loss.default": counts,
    "aten.multi_margin_loss.default": margins,
    "aten.multilabel_margin_loss.default": label_margins,
    "autoplan.ctc_loss.default": alignments,
    "aten.linalg_norm.default": norms,
}
