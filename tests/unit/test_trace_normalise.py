"""Losses that are means over the batch, written as sums and counts, against PyTorch's own."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

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


def test_means_over_features_and_weighted_losses_stay():
    x, y = torch.randn(6, 5, 9), torch.randn(6, 5, 9)
    graph, _, _ = _traced(lambda a, b: (a * b).mean(-1).sum(), x, y)
    assert "/mean" in graph.by_name

    def weighted(scores, targets):
        weight = torch.tensor([1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 3.0])
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten(), weight=weight)

    targets = _targets()
    graph, loss, _ = _traced(weighted, x, targets)
    assert "/clamp_min" not in graph.by_name
    assert torch.equal(loss, _eager(weighted, x, targets)[0])
