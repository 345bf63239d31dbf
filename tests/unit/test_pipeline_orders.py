"""Orders of actions: those of torch's own schedule objects, and free of deadlock."""

import itertools

import numpy as np
import pytest
import torch
from torch.distributed.pipelining import schedules as torch_schedules

from cost_models.schedule_memory import held_microbatches, peak_held
from cost_models.schedule_slots import exchange_layout, overlapped_layout
from cost_models.schedules import PipelineShape, ScheduleError, rank_actions

TORCH = {
    "gpipe": torch_schedules.ScheduleGPipe,
    "1f1b": torch_schedules.Schedule1F1B,
    "interleaved_1f1b": torch_schedules.ScheduleInterleaved1F1B,
    "zero_bubble": torch_schedules.ScheduleInterleavedZeroBubble,
    "zbv": torch_schedules.ScheduleZBVZeroBubble,
}
STAGES_PER_RANK = {"gpipe": (1,), "1f1b": (1,), "zbv": (2,)}
SIZES = list(itertools.product(range(1, 6), range(1, 15)))


class RecordingStage:
    """Stands in for torch's PipelineStage: sends nothing, notes what it is asked to compute."""

    def __init__(self, rank, ranks, index, stages):
        self.stage_index, self.num_stages = index, stages
        self.group_rank, self.group_size = rank, ranks
        self.is_first, self.is_last = index == 0, index == stages - 1
        self.has_backward = True
        self.submod = torch.nn.Identity()
        self.stage_index_to_group_rank = {}
        self.log = []

    def _no_messages(self, microbatch):
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = _no_messages

    def forward_one_chunk(self, microbatch, *_, **__):
        self.log.append(("F", self.stage_index, microbatch))

    def backward_one_chunk(self, microbatch, *_, **__):
        self.log.append(("B", self.stage_index, microbatch))

    def perform_reduce_grad(self, scale):
        pass


def ran_by_torch(schedule, ranks, microbatches):
    """What torch's single-stage schedules compute (their printed order is off on the last rank)."""
    logs = []
    for rank in range(ranks):
        stage = RecordingStage(rank, ranks, rank, ranks)
        run = TORCH[schedule](stage, microbatches)
        run._initialize_stage = lambda *_, **__: None
        run._step_microbatches([()] * microbatches, [{}] * microbatches)
        logs.append(stage.log)
    return logs


def planned_by_torch(schedule, ranks, per_rank, microbatches):
    stages = [
        RecordingStage(0, ranks, local * ranks, ranks * per_rank) for local in range(per_rank)
    ]
    order = TORCH[schedule](stages, microbatches).pipeline_order
    return [
        [
            (action.computation_type.value, action.stage_index, action.microbatch_index)
            for action in order[rank]
            if action is not None
        ]
        for rank in range(ranks)
    ]


def shape_of(schedule, ranks, per_rank, microbatches):
    return PipelineShape(
        schedule=schedule, ranks=ranks, stages=ranks * per_rank, microbatches=microbatches
    )


@pytest.mark.parametrize("schedule", TORCH)
def test_the_order_is_torchs(schedule):
    """Refusals too, but that torch's Schedule1F1B takes no fewer microbatches than ranks."""
    compared = 0
    for ranks, microbatches in SIZES:
        for per_rank in STAGES_PER_RANK.get(schedule, (1, 2, 3)):
            try:
                if schedule in ("gpipe", "1f1b"):
                    theirs = ran_by_torch(schedule, ranks, microbatches)
                else:
                    theirs = planned_by_torch(schedule, ranks, per_rank, microbatches)
            except ValueError:
                if schedule == "1f1b":
                    assert microbatches < ranks
                    continue
                with pytest.raises(ScheduleError):
                    shape_of(schedule, ranks, per_rank, microbatches)
                continue
            shape = shape_of(schedule, ranks, per_rank, microbatches)
            assert [[tuple(a) for a in rank_actions(shape, r)] for r in range(ranks)] == theirs
            compared += 1
    assert compared >= 60


def megatron_interleaved(ranks, per_rank, microbatches, rank):
    """Chunks of forwards and of backwards, and the warmup, as in Megatron's schedules.py:
    ``get_model_chunk_id``, groups of ``ranks`` microbatches per chunk."""
    total = microbatches * per_rank
    group = ranks * per_rank
    chunks = [(i % group) // ranks for i in range(total)]
    warmup = (ranks - rank - 1) * 2 + (per_rank - 1) * ranks
    return chunks, [per_rank - 1 - chunk for chunk in chunks], min(warmup, total)


def test_interleaved_is_megatrons_where_ranks_divide_microbatches():
    for ranks, per_rank, rounds in itertools.product(range(2, 6), (1, 2, 3), (2, 3, 4)):
        shape = shape_of("interleaved_1f1b", ranks, per_rank, ranks * rounds)
        for rank in range(ranks):
            actions = rank_actions(shape, rank)
            forward, backward, warmup = megatron_interleaved(ranks, per_rank, ranks * rounds, rank)
            assert [a.stage // ranks for a in actions if a.kind == "F"] == forward
            assert [a.stage // ranks for a in actions if a.kind == "B"] == backward
            kinds = "".join(a.kind for a in actions)
            steady = len(forward) - warmup
            assert kinds == "F" * warmup + "FB" * steady + "B" * warmup


def counted(shape, freed_by):
    """Peaks of stages and of ranks, by adding up the actions of each rank."""
    peaks, of_ranks = [0] * shape.stages, []
    for rank in range(shape.ranks):
        held, of_rank = [0] * shape.stages, 0
        for kind, stage, _ in rank_actions(shape, rank):
            held[stage] += (kind == "F") - (kind in freed_by)
            peaks[stage] = max(peaks[stage], held[stage])
            of_rank = max(of_rank, sum(held))
        of_ranks.append(of_rank)
    return peaks, of_ranks


@pytest.mark.parametrize("schedule", TORCH)
def test_what_stages_hold_is_what_their_actions_add_up_to(schedule):
    for ranks, microbatches in [*SIZES, (3, 24), (4, 23)]:
        for per_rank in STAGES_PER_RANK.get(schedule, (1, 2, 3)):
            try:
                shape = shape_of(schedule, ranks, per_rank, microbatches)
            except ScheduleError:
                continue
            ones = [1.0] * shape.stages
            for until_weight, freed_by in ((False, "BI"), (True, "BW")):
                held = held_microbatches(shape, until_weight=until_weight).max(axis=0).tolist()
                of_ranks = peak_held(shape, ones, until_weight=until_weight)
                assert (held, of_ranks) == counted(shape, freed_by)


def layouts():
    for schedule in ("gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"):
        for ranks, microbatches in SIZES:
            for per_rank in STAGES_PER_RANK.get(schedule, (1, 2, 3)):
                try:
                    shape = shape_of(schedule, ranks, per_rank, microbatches)
                except ScheduleError:
                    continue
                yield overlapped_layout(shape)
                yield exchange_layout(shape)


def slots_of(spread, layout):
    """Slot by (stage, place among the microbatches of the stage)."""
    found, seen = {}, {}
    stages = spread(np.arange(layout.shape.stages), -1)
    for slot, rank in np.argwhere(stages >= 0):
        stage = int(stages[slot, rank])
        seen[stage] = seen.get(stage, -1) + 1
        found[stage, seen[stage]] = int(slot)
    return found


def test_slots_keep_each_ranks_order_and_all_dependencies():
    """Each action needs earlier slots only: no order deadlocks, whatever things cost."""
    for layout in layouts():
        shape = layout.shape
        forward = slots_of(layout.of_forwards, layout)
        backward = slots_of(layout.of_backwards, layout)
        assert len(forward) == len(backward) == shape.stages * shape.microbatches
        assert max(backward.values()) < layout.slots
        for (stage, microbatch), slot in forward.items():
            assert stage == 0 or forward[stage - 1, microbatch] < slot
            assert slot <= backward[stage, microbatch]
        for (stage, microbatch), slot in backward.items():
            if stage < shape.stages - 1:
                same_slot = layout.lag == 0 and (stage + 1) % shape.ranks
                assert backward[stage + 1, microbatch] < slot + bool(same_slot)
        for rank in range(shape.ranks):
            timed = [
                (forward[stage, i], 0) if kind == "F" else (backward[stage, i], 1)
                for kind, stage, i in rank_actions(shape, rank)
                if kind != "W"
            ]
            assert timed == sorted(timed)
            assert len(set(timed)) == len(timed)
