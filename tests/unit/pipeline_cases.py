"""Random pipelines for hypothesis: any schedule, uneven stages, fast and slow messages."""

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from cost_models.pipeline import StageTimes, simulate
from cost_models.schedules import PipelineShape, ScheduleError

SCHEDULES = ["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble", "zbv"]


@dataclass(frozen=True)
class Case:
    schedule: str
    ranks: int
    microbatches: int
    stages: tuple[StageTimes, ...]
    blocking: bool

    @property
    def shape(self):
        return PipelineShape(
            schedule=self.schedule,
            ranks=self.ranks,
            stages=len(self.stages),
            microbatches=self.microbatches,
        )

    def simulate(self):
        return simulate(
            self.schedule, self.stages, self.microbatches, self.ranks, blocking_sends=self.blocking
        )

    def with_time(self, index, name, value):
        stages = list(self.stages)
        stages[index] = replace(stages[index], **{name: value})
        return replace(self, stages=tuple(stages))

    def crossing(self, way):
        """Stages whose message to the stage ``way`` further leaves the rank."""
        shape = self.shape
        return [
            stage
            for i, stage in enumerate(self.stages)
            if 0 <= i + way < len(self.stages) and shape.rank_of(i) != shape.rank_of(i + way)
        ]

    def stage_s(self):
        return [s.forward_s + s.backward_input_s + s.backward_weight_s for s in self.stages]

    def before_s(self):
        """Of each stage: the first forward on its way here, and the last gradient back."""
        return [
            sum(s.forward_s + s.send_forward_s for s in self.stages[:i])
            + sum(s.backward_input_s + s.backward_weight_s for s in self.stages[:i])
            + sum(s.send_backward_s for s in self.stages[1 : i + 1])
            for i in range(len(self.stages))
        ]


@st.composite
def shapes(draw, schedules=SCHEDULES, max_ranks=5, max_microbatches=14):
    schedule = draw(st.sampled_from(schedules))
    ranks = draw(st.integers(1, max_ranks))
    per_rank = {"gpipe": 1, "1f1b": 1, "zbv": 2}.get(schedule) or draw(st.integers(1, 3))
    microbatches = draw(st.integers(1, max_microbatches))
    sizes = {"schedule": schedule, "ranks": ranks, "stages": ranks * per_rank}
    try:
        return PipelineShape(**sizes, microbatches=microbatches)
    except ScheduleError:
        return PipelineShape(**sizes, microbatches=microbatches // ranks * ranks)


@st.composite
def stage_times(draw, stages, longest_send_s=3.0):
    seconds = st.floats(0.1, 2.0)
    sends = st.sampled_from([0.0, 0.01, 0.1, longest_send_s])
    equal = draw(st.booleans())
    drawn = [
        StageTimes(
            forward_s=draw(seconds),
            backward_input_s=draw(seconds),
            backward_weight_s=draw(seconds),
            send_forward_s=draw(sends),
            send_backward_s=draw(sends),
        )
        for _ in range(1 if equal else stages)
    ]
    return tuple(drawn * stages if equal else drawn)


@st.composite
def cases(draw, blocking=None, **sizes):
    shape = draw(shapes(**sizes))
    if blocking is None:
        blocking = draw(st.booleans())
    return Case(
        schedule=shape.schedule,
        ranks=shape.ranks,
        microbatches=shape.microbatches,
        stages=draw(stage_times(shape.stages)),
        blocking=blocking and shape.schedule != "zbv",
    )


def draw_times(data, ranks, seconds):
    """Times of ranks with a stage each and messages between neighbours."""
    messages = st.floats(0.0, 0.3)
    return [
        StageTimes(
            forward_s=data.draw(seconds),
            backward_input_s=data.draw(seconds),
            backward_weight_s=data.draw(seconds),
            send_forward_s=data.draw(messages) if rank < ranks - 1 else 0.0,
            send_backward_s=data.draw(messages) if rank else 0.0,
        )
        for rank in range(ranks)
    ]
