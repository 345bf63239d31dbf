"""Examples of operators that combine elements: products, norms, attention, losses."""

from __future__ import annotations

import torch

from tests.rules.draw import Draw
from tests.rules.oracle import Example


def linear(draw: Draw, target: str) -> Example:
    lead, k, n = draw.shape(0, 3), draw.size(), draw.size()
    bias = draw.of([], [draw.floats(n)])
    return draw.call(target, draw.floats(*lead, k), draw.floats(n, k), *bias)


def addmm(draw: Draw, target: str) -> Example:
    m, k, n = draw.size(), draw.size(), draw.size()
    bias = draw.floats(*draw.of((n,), (m, n), (1, n), (m, 1), (1,)))
    scales = draw.of({}, {"beta": 0.5, "alpha": 2.0})
    return draw.call(target, bias, draw.floats(m, k), draw.floats(k, n), **scales)


def baddbmm(draw: Draw, target: str) -> Example:
    b, m, k, n = (draw.size() for _ in range(4))
    added = draw.floats(*draw.of((b, m, n), (b, 1, n), (1, m, n), (m, n), (n,), (1,)))
    return draw.call(target, added, draw.floats(b, m, k), draw.floats(b, k, n), beta=0.5, alpha=2.0)


def matmul(draw: Draw, target: str) -> Example:
    lead, m, k, n = draw.shape(0, 2), draw.size(), draw.size(), draw.size()
    left = draw.of((*draw.broadcast(lead), m, k), (*lead, m, k), (k,))
    right = draw.of((*lead, k, n), (*draw.broadcast(lead), k, n), (k,))
    return draw.call(target, draw.floats(*left), draw.floats(*right))


def mm(draw: Draw, target: str) -> Example:
    m, k, n = draw.size(), draw.size(), draw.size()
    return draw.call(target, draw.floats(m, k), draw.floats(k, n))


def bmm(draw: Draw, target: str) -> Example:
    b, m, k, n = (draw.size() for _ in range(4))
    return draw.call(target, draw.floats(b, m, k), draw.floats(b, k, n))


def einsum(draw: Draw, target: str) -> Example:
    size = {letter: draw.size() for letter in "abcd"}
    text = draw.of(
        "ab,bc->ac", "abc, cd", "ab,ab->a", "aab->b", "abc,dc->abd", "...a,a->...", "b,a"
    )
    terms = text.partition("->")[0].replace(" ", "").split(",")
    shapes = [[size[letter] for letter in term.replace("...", "cd")] for term in terms]
    return draw.call(target, text, [draw.floats(*shape) for shape in shapes])


def norm(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    normalized = shape[len(shape) - draw.of(*range(1, len(shape) + 1)) :]
    weight = draw.floats(*normalized) if draw.of(True, True, False) else None
    bias = draw.floats(*normalized) if draw.of(True, False) else None
    extra = (bias, 1e-5) if target == "aten.layer_norm.default" else (1e-5,)
    return draw.call(target, draw.floats(*shape), list(normalized), weight, *extra)


def attention(draw: Draw, target: str) -> Example:
    ranks = draw.ranks
    batch, heads, s, d = draw.of(1, 2), draw.of(ranks, 2 * ranks, 3), draw.of(ranks, 3), 2
    groups = draw.of(1, 1, 2, ranks)
    q = draw.floats(batch, heads * groups, s, d)
    k, v = draw.floats(batch, heads, s, d), draw.floats(batch, heads, s, draw.of(d, 4))
    kwargs = {"scale": 0.5, "enable_gqa": True} if groups > 1 else draw.of({}, {"scale": 0.5})
    mask = draw.of(None, (s, s), (batch, 1, s, s), (1, heads * groups, s, s), (batch, 1, 1, s))
    if groups == 1 and draw.of(False, False, True):
        q, k, v = q[0], k[0], v[0]
        mask = draw.of(None, (s, s), (heads, s, s), (1, 1, s))
    if mask is None:
        return draw.call(target, q, k, v, None, 0.0, draw.of(True, False), **kwargs)
    given = draw.of(draw.floats(*mask), draw.bools(*mask) | torch.eye(s, dtype=torch.bool)[-1])
    return draw.call(target, q, k, v, given, 0.0, False, **kwargs)


def reduce_all(draw: Draw, target: str) -> Example:
    return draw.call(target, draw.floats(*draw.shape()))


def reduce_dims(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    dims = sorted({draw.dim(shape) % len(shape) for _ in range(2)})
    return draw.call(target, draw.floats(*shape), dims, draw.of(False, True))


def sum_dims(draw: Draw, target: str) -> Example:
    made = reduce_dims(draw, target)
    return draw.of(made, draw.call(target, made.args[0], None, made.args[2]))


def reduce_dim(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    return draw.call(target, draw.floats(*shape), draw.dim(shape), draw.of(False, True))


def argument_of(draw: Draw, target: str) -> Example:
    made = reduce_dim(draw, target)
    return draw.of(made, draw.call(target, made.args[0]))


def variance(draw: Draw, target: str) -> Example:
    made = reduce_dims(draw, target)
    return draw.call(target, *made.args[:2], correction=0, keepdim=made.args[2])


def variance_dims(draw: Draw, target: str) -> Example:
    x, dims, keepdim = reduce_dims(draw, target).args
    return draw.call(target, x, dims, False, keepdim)


def variance_all(draw: Draw, target: str) -> Example:
    return draw.call(target, *reduce_all(draw, target).args, False)


def vector_norm(draw: Draw, target: str) -> Example:
    x, dims, keepdim = reduce_dims(draw, target).args
    return draw.call(target, x, 2, dims, keepdim)


def along(draw: Draw, target: str) -> Example:
    shape = draw.shape(1, 4)
    return draw.call(target, draw.floats(*shape), draw.dim(shape))


def along_half(draw: Draw, target: str) -> Example:
    return draw.call(target, *along(draw, target).args, False)


def class_loss(draw: Draw, target: str) -> Example:
    n, c, more = draw.size(), 2 * draw.ranks, draw.of((), (), draw.shape(1, 2))
    flat = draw.of(False, False, False, True)
    scores = draw.floats(c) if flat else draw.floats(n, c, *more)
    samples = () if flat else (n, *more)
    classes = draw.integers(c, *samples)
    weight = draw.of(None, None, draw.positive(c).detach())
    reduction, ignore = draw.of(0, 1, 2, 2), draw.of(-100, 1)
    if target != "aten.cross_entropy_loss.default":
        return draw.call(target, scores, classes, weight, reduction, ignore)
    smoothing = draw.of(0.0, 0.1)
    if draw.of(False, False, True):
        given = torch.softmax(draw.floats(*scores.shape), 0 if flat else 1)
        return draw.call(target, scores, given, weight, reduction, -100, smoothing)
    return draw.call(target, scores, classes, weight, reduction, ignore, smoothing)


def nll(draw: Draw, target: str) -> Example:
    n, c = draw.size(), 2 * draw.ranks
    return draw.call(
        target, draw.floats(n, c), draw.integers(c, n), None, draw.of(0, 1, 2), draw.of(-100, 1)
    )


def elementwise_loss(draw: Draw, target: str) -> Example:
    shape = draw.shape()
    other = draw.of(shape, draw.broadcast(shape)) if target == "aten.mse_loss.default" else shape
    target_values = draw.floats(*other)
    if target == "aten.soft_margin_loss.default":
        target_values = target_values.detach()
    return draw.call(target, draw.floats(*shape), target_values, draw.of(0, 1, 2))


def binary_loss(draw: Draw, target: str) -> Example:
    shape = draw.shape()
    scores, given = torch.rand(2, *shape, dtype=torch.float64)
    weight = draw.of(None, draw.positive(*draw.broadcast(shape)).detach())
    weights = (weight,) if target == "aten.binary_cross_entropy.default" else (weight, None)
    if len(weights) == 2:
        weights = (weight, draw.of(None, draw.positive(*draw.broadcast(shape)).detach()))
    return draw.call(target, scores.requires_grad_(), given, *weights, draw.of(0, 1, 2))


def _all(make, names: str):
    return {f"aten.{name}": make for name in names.split()}


CALLS = {
    "aten.linear.default": linear,
    "aten.addmm.default": addmm,
    "aten.baddbmm.default": baddbmm,
    "aten.matmul.default": matmul,
    "aten.mm.default": mm,
    "aten.bmm.default": bmm,
    "aten.einsum.default": einsum,
    **_all(norm, "layer_norm.default rms_norm.default"),
    "aten.scaled_dot_product_attention.default": attention,
    **_all(
        reduce_all,
        "sum.default mean.default max.default min.default any.default all.default",
    ),
    **_all(reduce_dims, "mean.dim amax.default amin.default logsumexp.default"),
    "aten.sum.dim_IntList": sum_dims,
    **_all(reduce_dim, "max.dim min.dim any.dim all.dim"),
    **_all(argument_of, "argmax.default argmin.default"),
    **_all(variance, "var.correction std.correction"),
    **_all(variance_dims, "var.dim std.dim"),
    **_all(variance_all, "var.default std.default"),
    "aten.linalg_vector_norm.default": vector_norm,
    **_all(along, "softmax.int log_softmax.int _safe_softmax.default cumsum.default sort.default"),
    **_all(
        along,
        """cumprod.default cummax.default cummin.default logcumsumexp.default argsort.default""",
    ),
    "aten.prod.default": reduce_all,
    **_all(reduce_dim, "prod.dim_int median.dim"),
    **_all(variance, "var_mean.correction std_mean.correction"),
    **_all(variance_dims, "var_mean.dim std_mean.dim"),
    **_all(along_half, "_softmax.default _log_softmax.default"),
    **_all(class_loss, "cross_entropy_loss.default nll_loss_nd.default"),
    "aten.nll_loss.default": nll,
    **_all(
        elementwise_loss,
        """mse_loss.default smooth_l1_loss.default huber_loss.default l1_loss.default
        soft_margin_loss.default kl_div.default""",
    ),
    **_all(binary_loss, "binary_cross_entropy.default binary_cross_entropy_with_logits.default"),
}
