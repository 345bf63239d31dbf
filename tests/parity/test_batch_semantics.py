"""The global loss is that of the global batch, however samples and ignored tokens are spread."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from autoplan.codegen.pipeline import emit_choices
from autoplan.errors import UnsupportedModelError
from autoplan.trace.capture import capture
from tests.parity.cases import case
from tests.parity.choose import replicated
from tests.parity.models import GPT, initialise, language_batch
from tests.parity.simulate import assert_same, one_device, sharded
from tests.parity.stages import stages_at


def gpt_with_labels(keep: Tensor):
    """A model and a batch whose labels count only where ``keep`` is true."""
    model, batch = initialise(GPT(layers=1), torch.float64), language_batch(keep.shape[0])
    batch["labels"] = torch.where(keep, batch["labels"].clamp(min=0), -100)
    return model, batch


@pytest.mark.parametrize(("dp", "num_microbatches"), [(2, 1), (1, 2), (2, 2)])
def test_two_valid_tokens_here_and_one_there(dp, num_microbatches):
    keep = torch.zeros(4, 8, dtype=torch.bool)
    keep[0, :2] = keep[3, 5] = True
    model, batch = gpt_with_labels(keep)
    graph = capture(model, batch).at_batch(4)
    emitted = emit_choices(replicated(graph, 2, dp=dp, num_microbatches=num_microbatches), "gpt")
    truth = one_device(model, lambda: model(**batch))
    assert_same(sharded(emitted, model, batch), truth)


def test_no_valid_token_gives_zero():
    model, batch = gpt_with_labels(torch.zeros(4, 8, dtype=torch.bool))
    graph = capture(model, batch).at_batch(4)
    emitted = emit_choices(replicated(graph, 1, dp=2, num_microbatches=2), "gpt")
    found = sharded(emitted, model, batch)
    assert found.loss == 0
    assert all((gradient == 0).all() for gradient in found.gradients.values())


def test_batch_one_per_piece():
    tested = case("gpt")
    emitted = emit_choices(replicated(tested.graph, 1, dp=2, num_microbatches=3), "gpt")
    assert_same(sharded(emitted, tested.model, tested.batch), tested.truth())


class SampleSum(nn.Module):
    """A sum over samples, no mean, with a factor of the batch size."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x) ** 2).sum() * x.shape[0]


def test_the_batch_size_in_arithmetic_is_the_global_one():
    model = initialise(SampleSum(), torch.float64)
    batch = {"x": torch.randn(6, 8, dtype=torch.float64)}
    try:
        graph = capture(model, batch).at_batch(6)
    except UnsupportedModelError:
        pytest.skip("the batch size is not traced as arithmetic")
    emitted = emit_choices(replicated(graph, 2, dp=3, num_microbatches=2), "sum")
    assert_same(sharded(emitted, model, batch), one_device(model, lambda: model(**batch)))


class Variance(nn.Module):
    """Every sample is compared with the mean of all."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return ((y - y.mean(0)) ** 2).sum()


def test_a_loss_that_mixes_samples_is_refused_by_name():
    model = initialise(Variance(), torch.float64)
    batch = {"x": torch.randn(6, 8, dtype=torch.float64)}
    graph = capture(model, batch).at_batch(6)
    with pytest.raises(UnsupportedModelError, match="dp=1 and one microbatch"):
        emit_choices(replicated(graph, 1, dp=2), "variance")
    with pytest.raises(UnsupportedModelError, match="dp=1 and one microbatch"):
        emit_choices(replicated(graph, 1, num_microbatches=2), "variance")
    emitted = emit_choices(replicated(graph, 2), "variance")
    assert_same(sharded(emitted, model, batch), one_device(model, lambda: model(**batch)))


class FirstIsRight(nn.Module):
    """Scores every sample against a queue; the targets are made in the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4))
        self.queue = nn.Buffer(torch.randn(5, 8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        targets = torch.zeros(x.shape[0], dtype=torch.long, device=x.device)
        return nn.functional.cross_entropy(x @ self.queue.t(), targets)


def test_a_last_stage_counts_targets_that_no_input_gives():
    model = initialise(FirstIsRight(), torch.float64)
    batch = {"x": torch.randn(4, 8, dtype=torch.float64)}
    graph = capture(model, batch).at_batch(4)
    chosen = replicated(graph, 1, dp=2, num_microbatches=2, stages=stages_at(graph, [0, 2]))
    truth = one_device(model, lambda: model(**batch))
    assert_same(sharded(emit_choices(chosen, "first"), model, batch), truth)


class CountingLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)) / mask.sum().clamp_min(1)


class CountingLayers(nn.Module):
    """Every layer counts a mask over the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(CountingLayer() for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return x.sum()


def test_a_count_inside_a_block_needs_the_batch_in_one_piece():
    model = initialise(CountingLayers(), torch.float64)
    batch = {"x": torch.randn(4, 8, dtype=torch.float64), "mask": torch.rand(4, 3) < 0.2}
    graph = capture(model, batch).at_batch(4)
    assert graph.blocks
    with pytest.raises(UnsupportedModelError, match="inside the block layers"):
        emit_choices(replicated(graph, 2, dp=2), "counting")
    emitted = emit_choices(replicated(graph, 2), "counting")
    assert emitted.counts == ()
    assert_same(sharded(emitted, model, batch), one_device(model, lambda: model(**batch)))


class Constant(nn.Module):
    """A loss that no sample enters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight**2).sum()


def test_a_loss_without_samples_is_refused_in_pieces():
    graph = capture(Constant(), {"x": torch.randn(6, 8)}).at_batch(6)
    with pytest.raises(UnsupportedModelError, match="no sum over the samples"):
        emit_choices(replicated(graph, 1, dp=2), "constant")


class Dropping(nn.Module):
    def __init__(self, drop: nn.Module | None) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(8, 8), drop

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if self.drop is None:
            heads = y.view(-1, 2, 1, 4)
            return nn.functional.scaled_dot_product_attention(
                heads, heads[:, :1], heads[:, :1], dropout_p=0.25, enable_gqa=True
            ).sum()
        return self.drop(y).sum()


@pytest.mark.parametrize(
    ("drop", "message"),
    [
        (nn.AlphaDropout(0.1), r"alpha_dropout.default with p=0\.1 at drop: .* use plain dropout"),
        (nn.FeatureAlphaDropout(0.1), r"feature_alpha_dropout.default with p=0\.1 at drop"),
        (None, r"attention.default with p=0\.25 at .*: .* repeat its keys and values"),
    ],
)
def test_masks_that_are_not_kept_are_refused_by_name_on_more_than_one_device(drop, message):
    graph = capture(Dropping(drop), {"x": torch.randn(4, 8)}).at_batch(4)
    for degrees in ({"tp": 2}, {"tp": 1, "dp": 2}, {"tp": 1, "num_microbatches": 2}):
        with pytest.raises(UnsupportedModelError, match=message):
            emit_choices(replicated(graph, **degrees), "dropping")
    with pytest.raises(UnsupportedModelError, match=message):
        emit_choices(replicated(graph, 1, stages=stages_at(graph, [0])), "dropping")
    emit_choices(replicated(graph, 1), "dropping")


def test_dropout_out_of_training_is_no_dropout():
    graph = capture(Dropping(nn.AlphaDropout(0.1)).eval(), {"x": torch.randn(4, 8)}).at_batch(4)
    emit_choices(replicated(graph, 2), "dropping")
