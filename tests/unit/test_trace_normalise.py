"""Losses that are means over the batch, written as sums and counts, against PyTorch's own."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autoplan.sharding.batch import batch_layout
from autoplan.sharding.placement import Partial
from autoplan.trace.capture import capture
from tests.unit import trace_models as models


class Scores(nn.Module):
    """The identity with a parameter, so that the loss alone is under test."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * self.scale


def _traced(loss_fn, x, targets):
    model = Scores()
    graph = capture(model, (x, targets), loss_fn=loss_fn).at_batch(x.shape[0])
    loss = models.run_graph(graph, models.state_of(model), {"x": x, "targets": targets})
    return graph, loss, torch.autograd.grad(loss, model.scale)[0]


def _eager(loss_fn, x, targets):
    model = Scores()
    loss = loss_fn(model(x), targets)
    return loss, torch.autograd.grad(loss, model.scale)[0]


def _targets(some_ignored=True):
    targets = torch.randint(0, 9, (6, 5))
    if some_ignored:
        targets[0], targets[2, 1:4] = -100, -100
    return targets


CLASS_LOSSES = {
    "cross entropy": lambda x, y: F.cross_entropy(x.flatten(0, 1), y.flatten()),
    "ignore_index": lambda x, y: F.cross_entropy(x.flatten(0, 1), y.flatten(), ignore_index=3),
    "classes on dim 1": lambda x, y: F.cross_entropy(x.transpose(1, 2), y),
    "nll": lambda x, y: F.nll_loss(F.log_softmax(x, -1).flatten(0, 1), y.flatten()),
}


@pytest.mark.parametrize("name", CLASS_LOSSES)
def test_class_losses_are_bit_identical(name):
    loss_fn, x = CLASS_LOSSES[name], torch.randn(6, 5, 9)
    targets = _targets(some_ignored=name != "ignore_index")
    graph, loss, gradient = _traced(loss_fn, x, targets)
    expected, expected_gradient = _eager(loss_fn, x, targets)
    assert torch.equal(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-6, atol=1e-6)
    assert "/clamp_min" in graph.by_name
    reductions = [node.args[3] for node in graph.nodes if "_loss" in node.target]
    assert reductions == [2]


def test_label_smoothing_and_class_probabilities():
    def smoothed(x, y):
        return F.cross_entropy(x.flatten(0, 1), y.flatten(), label_smoothing=0.1)

    def soft(x, y):
        return F.cross_entropy(x.flatten(0, 1), y.flatten(0, 1))

    x = torch.randn(6, 5, 9)
    for loss_fn, targets in ((smoothed, _targets()), (soft, torch.rand(6, 5, 9).softmax(-1))):
        _, loss, gradient = _traced(loss_fn, x, targets)
        expected, expected_gradient = _eager(loss_fn, x, targets)
        torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_no_valid_target_gives_zero(smoothing):
    def loss_fn(x, y):
        return F.cross_entropy(x.flatten(0, 1), y.flatten(), label_smoothing=smoothing)

    targets = torch.full((6, 5), -100)
    _, loss, gradient = _traced(loss_fn, torch.randn(6, 5, 9), targets)
    assert loss.item() == 0.0
    assert gradient.item() == 0.0


ELEMENTWISE = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth l1": lambda x, y: F.smooth_l1_loss(x, y, beta=0.5),
    "huber": lambda x, y: F.huber_loss(x, y, delta=0.7),
    "bce with logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
    "bce": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "mean": lambda x, y: (x * y).mean(),
    "kl": lambda x, y: F.kl_div(x.log_softmax(-1), y.log_softmax(-1), log_target=True),
    "poisson": lambda x, y: F.poisson_nll_loss(x, y.exp()),
    "hinge": lambda x, y: F.hinge_embedding_loss(x, y.sign()),
    "ranking": lambda x, y: F.margin_ranking_loss(x, y, y.sign(), margin=0.5),
    "triplet": lambda x, y: F.triplet_margin_loss(x, y, y.flip(-1), swap=True),
    "cosine embedding": lambda x, y: F.cosine_embedding_loss(
        x.flatten(0, 1), y.flatten(0, 1), y.flatten(0, 1)[:, 0].sign(), margin=0.1
    ),
    "margins": lambda x, y: F.multi_margin_loss(x.flatten(1), (y[:, 0, 0] > 0).long()),
    "label margins": lambda x, y: F.multilabel_margin_loss(x.flatten(1), y.flatten(1).argsort(-1)),
    "mean over all dims": lambda x, y: (x * y).mean((0, 1, 2)),
    "mean over the batch": lambda x, y: (x * y).mean(0).pow(2).sum(),
    "mean kept": lambda x, y: (x - x.mean((0, 1), keepdim=True)).pow(2).mean() + y.mean(),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_means_become_sums_over_the_batch(name):
    x, y = torch.randn(6, 5, 9), torch.randn(6, 5, 9)
    graph, loss, gradient = _traced(ELEMENTWISE[name], x, y)
    expected, expected_gradient = _eager(ELEMENTWISE[name], x, y)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-6)
    assert not [node for node in graph.nodes if "mean" in node.target]
    for node in graph.nodes:
        if node.target.endswith("_loss.default"):
            assert 2 in node.args


def test_means_over_features_stay():
    x, y = torch.randn(6, 5, 9), torch.randn(6, 5, 9)
    graph, _, _ = _traced(lambda a, b: (a * b).mean(-1).sum(), x, y)
    assert "/mean" in graph.by_name


WEIGHTED = {
    "cross entropy": lambda x, y, w: F.cross_entropy(x.flatten(0, 1), y.flatten(), weight=w),
    "smoothed": lambda x, y, w: F.cross_entropy(
        x.transpose(1, 2), y, weight=w, ignore_index=3, label_smoothing=0.1
    ),
    "nll": lambda x, y, w: F.nll_loss(x.log_softmax(-1).flatten(0, 1), y.flatten(), weight=w),
    "class probabilities": lambda x, y, w: F.cross_entropy(
        x.flatten(0, 1), F.one_hot(y.flatten().clamp(min=0), 9).to(x.dtype), weight=w
    ),
}


@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_of_classes_are_summed_over_the_batch(name):
    """Those of the valid targets are known ahead of the forward: pieces of the batch stay apart."""

    def loss_fn(scores, targets):
        return WEIGHTED[name](scores, targets, torch.linspace(0.5, 2.0, 9))

    targets = _targets(some_ignored=name != "smoothed")
    x = torch.randn(6, 5, 9)
    graph, loss, gradient = _traced(loss_fn, x, targets)
    expected, expected_gradient = _eager(loss_fn, x, targets)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-6)
    layout = batch_layout(graph)
    assert (layout.mixing, layout.loss) == ((), Partial())


ADDED = {
    "from one": lambda x, y, w: 1 - (x * y).sum(-1).mean(),
    "a constant": lambda x, y, w: 2 * (F.mse_loss(x, y) - 3) + 1,
    "a penalty": lambda x, y, w: F.mse_loss(x, y) + 0.1 * w.square(),
    "from a penalty": lambda x, y, w: w.abs() - F.mse_loss(x, y),
    "a scaled penalty": lambda x, y, w: torch.add(-F.l1_loss(x, y) / 2, w, alpha=0.5) + w.exp(),
}


@pytest.mark.parametrize("name", ADDED)
def test_what_is_added_to_a_total_is_shared_by_the_pieces(name):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.weight = (nn.Parameter(torch.tensor(x)) for x in (1.5, 0.7))

        def forward(self, x, y):
            return ADDED[name](x * self.scale, y, self.weight)

    model, x, y = Model().double(), *torch.randn(2, 6, 5, 9, dtype=torch.float64)
    graph = capture(model, (x, y)).at_batch(6)
    loss = models.run_graph(graph, models.state_of(model), {"x": x, "y": y})
    expected = model(x, y)
    torch.testing.assert_close(loss, expected)
    gradients = [
        torch.autograd.grad(value, model.parameters(), materialize_grads=True)
        for value in (loss, expected)
    ]
    torch.testing.assert_close(*gradients)
    layout = batch_layout(graph)
    assert (layout.mixing, layout.loss) == ((), Partial())
