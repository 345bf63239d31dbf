"""A dry run tells what the runtime then does, on a fake process group of 1,024 ranks too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, schedules
from torch.testing._internal.distributed.fake_pg import FakeStore

import autoplan
from autoplan.codegen.orders import Collective, Transfer
from autoplan.codegen.pipeline import emit_program
from autoplan.runtime import torch_private
from autoplan.runtime.parallelize import parallelize
from autoplan.runtime.scripts import world_of_plan
from autoplan.runtime.weights import local
from autoplan.trace.capture import capture
from autoplan.verification.rehearse import rehearse
from cost_models.schedules import PipelineShape
from tests.distributed.greedy import greedy_regions
from tests.distributed.plans import make_plan
from tests.parity import normed
from tests.parity.models import GPT, initialise, language_batch
from tests.parity.stages import stages_at

PP, DP, TP = 8, 16, 8
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@contextmanager
def fake_rank(rank: int, world_size: int) -> Iterator[list[tuple[str, Any]]]:
    """This process as one rank of many whose messages come to nothing; yields what it sends."""
    sent: list[tuple[str, Any]] = []

    def told(kind: str, call: Any) -> Any:
        def collective(x: torch.Tensor, *args: Any) -> Any:
            sent.append((kind, args))
            return call(x, *args)

        return collective

    batch = schedules._batch_p2p

    def batched(ops: list[Any], desc: str | None = None) -> Any:
        if ops:
            kind = "send" if ops[0].op is dist.isend else "receive"
            sent.append((kind, ops[0].peer))
        return batch(ops, desc)

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    wrapped = {kind: told(kind, getattr(torch_private, kind)) for kind in KINDS}
    try:
        with (
            mock.patch.multiple(torch_private, **wrapped),
            mock.patch.object(schedules, "_batch_p2p", batched),
            mock.patch.object(PipelineStage, "_warmup_backward_result", _all_are_static),
        ):
            yield sent
    finally:
        dist.destroy_process_group()


def _all_are_static(*_: Any, **__: Any) -> torch.Tensor:
    """What the other ranks would say: that shapes are known."""
    return torch.ones(1, dtype=torch.int32)


@pytest.mark.slow
def test_three_of_1024_ranks_do_what_the_dry_run_tells() -> None:
    model = initialise(GPT(layers=PP), torch.float32)
    graph = capture(model, language_batch(2))
    shape = PipelineShape(schedule="1f1b", ranks=PP, stages=PP, microbatches=PP)
    plan = make_plan(
        graph.fingerprint, global_batch=DP * PP, pp=PP, dp=DP, tp=TP, num_microbatches=PP, zero=1,
        regions=greedy_regions(graph, TP), schedule="1f1b",
        stages=stages_at(graph, (0, *range(2, PP + 1)), shape.rank_of),
    )  # fmt: skip
    told = rehearse(plan, model, graph)
    world = world_of_plan(emit_program(graph, plan), plan)
    assert len({rank for part in told.parts for rank in part.ranks}) == 1024
    for rank in (0, 517, 1023):
        part = next(part for part in told.parts if rank in part.ranks)
        with fake_rank(rank, 1024) as sent:
            pm = parallelize(model, graph, plan)
            pm.train_step(language_batch(PP))
            held = {name: tuple(local(p).shape) for name, p in pm.named_parameters()}
        first = part.ranks[0]
        if rank == first:
            assert held == {p.name: p.local_shape for p in part.parameters}
        assert set(held) == {p.name for p in part.parameters}
        script = list(world.scripts[world.script_of[rank]])
        expected = [
            (event.kind, rank + (event.peer - part.place) * DP * TP)
            for event in script
            if isinstance(event, Transfer)
        ]
        assert [entry for entry in sent if entry[0] in ("send", "receive")] == expected
        on_tp = [
            e.what.split(" ")[0] for e in script if isinstance(e, Collective) if e.axis == "tp"
        ]
        found = [kind for kind, _ in sent if kind in KINDS]
        assert sorted(found) == sorted(kind for kind in on_tp if kind in KINDS)


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("tp", [1, 2])
def test_statistics_of_batch_norm_are_told_as_they_are_sent(tp: int, recomputes: bool) -> None:
    model, batch = normed.model_of("mlp"), normed.batch_of(4)
    graph = capture(model, batch)
    again = frozenset(block.path for block in graph.blocks) if recomputes else frozenset()
    plan = make_plan(
        graph.fingerprint, global_batch=16, dp=4, tp=tp,
        regions=greedy_regions(graph, tp, again),
    )  # fmt: skip
    world = world_of_plan(emit_program(graph, plan), plan)
    script = [event for event in world.scripts[0] if isinstance(event, Collective)]
    told = [event.what.split(" ")[0] for event in script]
    with fake_rank(1, 4 * tp) as sent:
        parallelize(model, graph, plan).train_step(batch)
    assert [kind for kind, _ in sent] == [kind for kind in told if kind in KINDS]
    assert sum(event.axis == "dp" and "all_gather" in event.what for event in script) == (
        5 + len(again)
    )
    part = rehearse(plan, model, graph).parts[0]
    assert part.meetings["dp all_reduce"] == 5


def test_a_dry_run_is_printed(capsys: pytest.CaptureFixture) -> None:
    model, batch = GPT(), language_batch(2)
    plan = make_plan(
        capture(model, batch).fingerprint, global_batch=8, dp=2, tp=2, num_microbatches=2,
        regions=greedy_regions(capture(model, batch), 2),
    )  # fmt: skip
    autoplan.print_report(autoplan.dry_run(plan, model, batch))
    printed = capsys.readouterr().out
    assert "Ranks 0-3: place 0 of pp, stages 0" in printed
    assert "tokens.weight  [16, 16] of [32, 16] float32" in printed
