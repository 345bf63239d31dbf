"""Seconds of a stage as the schedule's simulation takes them, and those before and after it.

In a pipeline, ZeRO gathers a stage's weights once a step, before and beside its first forward
(``head_s``: what shows), and reduces its gradients beside its last backward; what shows of that
comes behind it (``tail_s``), and then the optimizer. Without a pipeline the stage decides how often
(``cost_models.zero``): what happens at every microbatch is part of its times. Messages of blocks
run beside compute, those of the root do not: its weights are needed first, its gradients are
complete last. ZeRO 0 sums gradients in buckets, all but the last beside the last backward where
``capabilities.sums_in_backward``, else beside nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autoplan.search.pipeline.loads import Load, Unit
from autoplan.search.pipeline.weight_messages import WeightMessages, last_bucket_share
from cost_models.overlap import exposed_s
from cost_models.zero import ZeroStage

_NEAR = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSeconds:
    """One stage: a microbatch's seconds, and once a step what comes before and after.

    ``optimizer_s`` comes after ``tail_s``. ``exposed_s`` is what shows of the messages over ``dp``
    in one step.
    """

    forward_s: float
    backward_input_s: float
    backward_weight_s: float
    head_s: float
    tail_s: float
    optimizer_s: float
    exposed_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StageClock:
    """Times stages of one configuration.

    Attributes:
        stage: how ZeRO runs here.
        microbatches: of a step.
        optimizer_s: seconds of the optimizer for one trained element of a rank.
        overlap_efficiency: fraction of hidden communication time that is really saved; 0 where
            messages run beside nothing.
        most_elements: that a stage can train.
    """

    stage: ZeroStage
    microbatches: int
    messages: WeightMessages
    optimizer_s: float
    overlap_efficiency: float
    most_elements: float

    def seconds(self, load: Load) -> StageSeconds:
        """The seconds of a stage."""
        optimizer_s = self.optimizer_s * sum(
            unit.count * unit.trained_elements for unit in load.units
        )
        if not self.stage.shards_states:
            return self._summed(load, optimizer_s)
        return self._sharded(load, optimizer_s)

    def _summed(self, load: Load, optimizer_s: float) -> StageSeconds:
        beside_s = self.messages.beside_s(load)
        hidden_s = beside_s - self._shown(beside_s, load.backward_window_s)
        tail_s = self.messages.sum_s(load) - hidden_s
        return StageSeconds(
            forward_s=load.forward_s,
            backward_input_s=load.backward_input_s,
            backward_weight_s=load.backward_weight_s,
            head_s=0.0,
            tail_s=tail_s,
            optimizer_s=optimizer_s,
            exposed_s=tail_s,
        )

    def _sharded(self, load: Load, optimizer_s: float) -> StageSeconds:
        stage = self.stage
        root_gather_s, gather_s = self._both(load, self.messages.gather_s)
        root_reduce_s, reduce_s = self._both(load, self.messages.reduce_s)
        again = stage.gathers_per_microbatch // 2
        scatters = stage.reductions_per_microbatch
        forward_s = again * root_gather_s + self._shown(again * gather_s, load.forward_window_s)
        backward_s = again * root_gather_s + scatters * root_reduce_s
        backward_s += self._shown(again * gather_s + scatters * reduce_s, load.backward_window_s)
        head_s = stage.gathers_per_step * (
            root_gather_s + self._shown(gather_s, load.forward_window_s)
        )
        tail_s = stage.reductions_per_step * (
            root_reduce_s + self._shown(reduce_s, load.backward_window_s)
        )
        return StageSeconds(
            forward_s=load.forward_s + forward_s,
            backward_input_s=load.backward_input_s + backward_s,
            backward_weight_s=load.backward_weight_s,
            head_s=head_s,
            tail_s=tail_s,
            optimizer_s=optimizer_s,
            exposed_s=head_s + tail_s + self.microbatches * (forward_s + backward_s),
        )

    def messages_s(self, load: Load) -> dict[str, float]:
        """All messages of a stage over ``dp`` in one step, hidden ones included, by collective."""
        messages = self.messages
        if not self.stage.shards_states:
            return {"all_reduce": messages.sum_s(load)}
        return {
            "all_gather": self.gathers * sum(self._both(load, messages.gather_s)),
            "reduce_scatter": self.reductions * sum(self._both(load, messages.scatter_s)),
            "all_reduce": self.reductions * sum(self._both(load, messages.replicas_s)),
        }

    @property
    def gathers(self) -> int:
        """How often each unit's weights are gathered in a step."""
        stage = self.stage
        return stage.gathers_per_step + self.microbatches * stage.gathers_per_microbatch

    @property
    def reductions(self) -> int:
        """How often each unit's gradients are reduced in a step."""
        stage = self.stage
        return stage.reductions_per_step + self.microbatches * stage.reductions_per_microbatch

    def hides(self, load: Load) -> tuple[float, float]:
        """Whether a stage's compute outlasts the messages under its forward and its backward: 1 if
        it does, 0 if not, between where they take about as long."""
        stage = self.stage
        if not stage.shards_states:
            beside_s = self.messages.beside_s(load) if self.overlap_efficiency else 0.0
            return 1.0, _share(beside_s, load.backward_window_s)
        _, gather_s = self._both(load, self.messages.gather_s)
        _, reduce_s = self._both(load, self.messages.reduce_s)
        again = stage.gathers_per_microbatch // 2
        scatters = max(stage.reductions_per_microbatch, stage.reductions_per_step)
        return (
            _share(gather_s, load.forward_window_s),
            _share(again * gather_s + scatters * reduce_s, load.backward_window_s),
        )

    @property
    def least_last_share(self) -> float:
        """Of the sum of gradients, what a stage's last bucket is at least."""
        return last_bucket_share(self.most_elements)

    def _both(self, load: Load, seconds_of: Callable[[Unit], float]) -> tuple[float, float]:
        """Seconds of the root's message, and of those of all blocks."""
        return seconds_of(load.root), sum(u.count * seconds_of(u) for u in load.blocks)

    def _shown(self, messages_s: float, window_s: float) -> float:
        return exposed_s(messages_s, window_s, self.overlap_efficiency)


def _share(messages_s: float, window_s: float) -> float:
    """1 where messages end well before the window, 0 well behind it, and straight between."""
    if not window_s:
        return 1.0 if not messages_s else 0.0
    return min(1.0, max(0.0, (1 + _NEAR - messages_s / window_s) / (2 * _NEAR)))
