"""The runtime over a program written by hand: equal to one device under every ZeRO stage."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from autoplan.capabilities import ZERO_STAGES
from autoplan.errors import PlanError
from autoplan.runtime import data_parallel
from tests.distributed.handmade import BATCH, Cell, make_net, net_batch, parallel_net
from tests.distributed.harness import run_outcomes, run_ranks
from tests.distributed.parity import assert_parity, full
from tests.distributed.training import check_equal, make_optimizer, train_alone, train_parallel

STEPS = 3


def batches_of(cell: Cell) -> list[dict[str, torch.Tensor]]:
    return [net_batch(BATCH, cell.dtype, seed=step) for step in range(STEPS)]


def compare_cells(rank: int, cells: list[Cell]) -> None:
    for cell in cells:
        model = make_net(cell)
        optimizer = make_optimizer(cell.optimizer, model.parameters())
        expected = train_alone(model, batches_of(cell), optimizer)
        for by_step in [True] if cell.num_microbatches > 1 else [True, False]:
            pm = parallel_net(cell)
            optimizer = make_optimizer(cell.optimizer, pm.parameters())
            try:
                got = train_parallel(pm, batches_of(cell), optimizer, by_step=by_step)
                check_equal(got, expected, cell.dtype)
            except Exception as error:
                raise AssertionError(f"{cell}, by_step={by_step}: {error}") from error


@pytest.mark.parametrize("mesh", [(2, 1), (1, 2), (2, 2)])
def test_training_equals_one_device(mesh):
    dp, tp = mesh
    cells = [
        Cell(dp, tp, zero, num_microbatches, dtype)
        for zero, num_microbatches, dtype in [
            (0, 1, torch.float64),
            (0, 4, torch.float32),
            (1, 2, torch.float64),
            (2, 4, torch.float32),
            (3, 1, torch.float64),
        ]
    ]
    run_ranks(compare_cells, dp * tp, cells)


def test_sizes_that_do_not_divide():
    run_ranks(compare_cells, 4, [Cell(2, 2, zero, 2, hidden=6) for zero in (0, 3)])
    run_ranks(compare_cells, 4, [Cell(4, 1, 3, hidden=6)])


@pytest.mark.parametrize(("dp", "tp", "world_size"), [(4, 1, 4), (4, 2, 8)])
def test_replicas_of_groups_that_share(dp, tp, world_size):
    """Hybrid sharding: gradients are scattered within a group and summed between groups."""
    cells = [
        Cell(dp, tp, zero, num_microbatches, hidden=6, replicas=2)
        for zero, num_microbatches in ((0, 2), (1, 2), (2, 1), (3, 2))
    ]
    run_ranks(compare_cells, world_size, cells)


def test_one_process_without_a_group():
    compare_cells(0, [Cell(zero=zero, num_microbatches=m) for zero in (0, 3) for m in (1, 4)])


def count_messages(rank: int, zero: int, num_microbatches: int) -> dict[str, int]:
    pm = parallel_net(Cell(dp=2, zero=zero, num_microbatches=num_microbatches))
    batch = pm.shard_batch(net_batch(BATCH, torch.float64))
    pm.train_step(batch)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        pm.train_step(batch)
    found = {"gather": 0, "reduce_scatter": 0}
    for event in profile.events():
        if event.name in ("c10d::_allgather_base_", "c10d::allgather_into_tensor_coalesced_"):
            found["gather"] += 1
        if event.name == "c10d::_reduce_scatter_base_":
            found["reduce_scatter"] += 1
    return found


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_messages_are_those_of_the_capability_table(zero):
    units, microbatches = 3, 4
    stage = ZERO_STAGES[zero]
    gathers = stage.gathers_per_step + stage.gathers_per_microbatch * microbatches
    reductions = stage.reductions_per_step + stage.reductions_per_microbatch * microbatches
    expected = {"gather": units * gathers, "reduce_scatter": units * reductions if zero else 0}
    assert run_ranks(count_messages, 2, zero, microbatches) == [expected] * 2


def accumulate_over_steps(rank: int, zero: int) -> None:
    cell = Cell(dp=2, zero=zero)
    model, pm = make_net(cell), parallel_net(cell)
    first, second, third = batches_of(cell)
    for batch in (first, second, third):
        model(**batch).backward()
    pm.train_step(pm.shard_batch(first))
    (pm(**pm.shard_batch(second))).backward()
    pm.train_step(pm.shard_batch(third))
    assert_parity(
        {name: full(p.grad) for name, p in pm.named_parameters()},
        {name: p.grad for name, p in model.named_parameters()},
        cell.dtype,
    )


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_gradients_accumulate_over_steps(zero):
    run_ranks(accumulate_over_steps, 2, zero)


def evaluate(rank: int) -> None:
    for zero in (0, 1, 3):
        cell = Cell(dp=2, zero=zero, num_microbatches=2)
        model, pm = make_net(cell), parallel_net(cell)
        batch = net_batch(BATCH, cell.dtype)
        with torch.no_grad():
            loss = pm(**pm.shard_batch(batch))
            assert loss.item() == pytest.approx(model(**batch).item(), rel=1e-9)
        shapes = {name: p.shape for name, p in model.named_parameters()}
        assert {name: p.shape for name, p in pm.named_parameters()} == shapes
        optimizer = make_optimizer("sgd", pm.parameters())
        got = train_parallel(pm, batches_of(cell), optimizer)
        optimizer = make_optimizer("sgd", model.parameters())
        check_equal(got, train_alone(model, batches_of(cell), optimizer), cell.dtype)


def test_evaluation_between_steps():
    run_ranks(evaluate, 2)


def compare_mixed_precision(rank: int, cells: list[Cell]) -> list[tuple[float, float]]:
    """Largest relative errors of loss and gradients against float32 on one device."""
    found = []
    for cell in cells:
        model, pm = make_net(cell), parallel_net(cell)
        batch = net_batch(BATCH, torch.float32)
        expected = model(**batch)
        expected.backward()
        assert all(p.dtype == torch.float32 for p in pm.parameters())
        loss = pm.train_step(pm.shard_batch(batch))
        largest = max(p.grad.abs().max().item() for p in model.parameters())
        gradients = dict(model.named_parameters())
        errors = [
            (full(p.grad) - gradients[name].grad).abs().max().item() / largest
            for name, p in pm.named_parameters()
        ]
        assert all(p.grad.dtype == torch.float32 for p in pm.parameters())
        found.append((abs(loss.item() / expected.item() - 1), max(errors)))
    return found


@pytest.mark.parametrize("mesh", [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_bf16_computes_low_and_keeps_float32(mesh):
    dp, tp = mesh
    cells = [
        Cell(dp, tp, zero, 2, dtype=torch.float32, precision="bf16", hidden=hidden)
        for zero, hidden in ((0, 16), (1, 16), (2, 6), (3, 16))
    ]
    for errors in run_ranks(compare_mixed_precision, dp * tp, cells):
        for loss_error, gradient_error in errors:
            assert 0 < loss_error < 0.02
            assert 0 < gradient_error < 0.05


def load_data(rank: int) -> list[float]:
    cell = Cell(dp=2, zero=3, num_microbatches=2)
    pm = parallel_net(cell)
    data = net_batch(4 * BATCH, cell.dtype)
    dataset = TensorDataset(data["x"], data["labels"])
    sampler = DistributedSampler(
        dataset, num_replicas=pm.data_world, rank=pm.data_rank, shuffle=False
    )
    optimizer = torch.optim.SGD(pm.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.1)
    losses = []
    for x, labels in DataLoader(dataset, batch_size=BATCH // pm.data_world, sampler=sampler):
        optimizer.zero_grad()
        losses.append(pm.train_step({"labels": labels, "x": x}).item())
        optimizer.step()
        scheduler.step()
    return losses


def test_loader_sampler_and_scheduler():
    cell = Cell()
    model = make_net(cell)
    data = net_batch(4 * BATCH, cell.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.1)
    losses = []
    for start in range(0, 4 * BATCH, BATCH):
        optimizer.zero_grad()
        rows = slice(start, start + BATCH)
        loss = model(data["x"][rows], data["labels"][rows])
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    assert run_ranks(load_data, 2) == [pytest.approx(losses, rel=1e-9)] * 2


def fail_then_go_on(rank: int) -> None:
    cell = Cell(dp=2, zero=1, num_microbatches=2)
    pm = parallel_net(cell)
    batch = pm.shard_batch(net_batch(BATCH, cell.dtype))
    wrong = batch["labels"].clone()
    wrong[-2:] = 1000
    with pytest.raises(IndexError):
        pm.train_step(batch | {"labels": wrong})
    with pytest.raises(RuntimeError, match="an earlier step failed midway"):
        pm.train_step(batch)
    with torch.no_grad(), pytest.raises(RuntimeError, match="an earlier step failed midway"):
        pm(**batch)


def test_a_failed_step_is_never_added_to_the_next():
    run_ranks(fail_then_go_on, 2)


def fail_in_backward(rank: int) -> None:
    pm = parallel_net(Cell(dp=2))
    batch = pm.shard_batch(net_batch(BATCH, torch.float64))
    loss = pm(**batch)
    parameter = next(pm.parameters())
    handle = parameter.register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss.backward()
    handle.remove()
    with pytest.raises(RuntimeError, match="an earlier step failed midway"):
        pm(**batch)


def test_a_failed_backward_is_never_added_to_the_next():
    run_ranks(fail_in_backward, 2)


def differentiate_without_accumulating(rank: int) -> None:
    """Terms of one rank are not handed out as gradients; what was there before stays."""
    cell = Cell(dp=2)
    pm = parallel_net(cell)
    batch = pm.shard_batch(net_batch(BATCH, cell.dtype))
    pm.train_step(batch)
    parameters = list(pm.parameters())
    before = [parameter.grad for parameter in parameters]
    with pytest.raises(PlanError, match=r"use loss\.backward\(\)"):
        torch.autograd.grad(pm(**batch), parameters)
    assert all(p.grad is grad for p, grad in zip(parameters, before, strict=True))
    pm(**batch).backward()


def test_gradients_that_are_not_accumulated_are_refused():
    run_ranks(differentiate_without_accumulating, 2)


def hook_parameters(rank: int) -> None:
    for zero, num_microbatches in ((0, 1), (3, 2)):
        cell = Cell(dp=2, zero=zero, num_microbatches=num_microbatches)
        pm = parallel_net(cell)
        batch = pm.shard_batch(net_batch(BATCH, cell.dtype))
        weight = dict(pm.named_parameters())["head.weight"]
        for register in (weight.register_hook, weight.register_post_accumulate_grad_hook):
            handle = register(lambda _: None)
            with pytest.raises(PlanError, match=r"'head\.weight' has a hook on its gradient"):
                pm.train_step(batch)
            handle.remove()
        pm.train_step(batch)


def test_hooks_on_the_gradients_of_parameters_are_refused():
    run_ranks(hook_parameters, 2)


def feed_peers_alike_or_not(rank: int) -> None:
    """Peers on tp may be fed equal copies, but no other rows, nor the same in another order."""
    cell = Cell(1, 2, 0)
    pm, batch = parallel_net(cell), net_batch(BATCH, cell.dtype)
    pm.train_step({name: value.clone() for name, value in batch.items()})
    for own in (lambda value: value.roll(rank, 0), lambda value: value * (1 + rank)):
        with pytest.raises(PlanError, match="2 ranks of data rank 0 are fed different batches"):
            pm.train_step({**batch, "x": own(batch["x"])})
    pm.train_step(batch)


def test_tensor_parallel_peers_must_be_fed_alike():
    run_ranks(feed_peers_alike_or_not, 2)


def freeze(rank: int) -> None:
    for zero, num_microbatches in ((0, 1), (1, 2), (3, 2)):
        cell = Cell(2, 2, zero, num_microbatches)
        model = make_net(cell)
        pm = parallel_net(cell, frozen=("blocks.0.up", "head.bias"))
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not name.startswith(("blocks.0.up", "head.bias")))
        got = train_parallel(pm, batches_of(cell), make_optimizer("adamw", pm.parameters()))
        optimizer = make_optimizer("adamw", model.parameters())
        check_equal(got, train_alone(model, batches_of(cell), optimizer), cell.dtype)


def test_frozen_parameters():
    run_ranks(freeze, 4)


def free_later(rank: int) -> None:
    pm = parallel_net(Cell(dp=2), frozen=("head.bias",))
    batch = pm.shard_batch(net_batch(BATCH, torch.float64))
    frozen = dict(pm.named_parameters())["head.bias"].requires_grad_(True)
    for step in (lambda: pm.train_step(batch), lambda: pm(**batch)):
        with pytest.raises(PlanError, match=r"head\.bias was frozen when the model was compiled"):
            step()
    frozen.requires_grad_(False)
    with torch.no_grad(), pytest.raises(PlanError, match="no_grad"):
        pm.train_step(batch)
    pm.train_step(batch)


def test_parameters_that_are_freed_later_and_steps_without_gradients_are_refused() -> None:
    run_ranks(free_later, 2)


def largest_resident(rank: int) -> int:
    """Most elements of whole weights that were there at once while the module was built."""
    seen = []

    def watch(unit, **options):
        whole = [p for p in seen_from(unit) if not isinstance(p, DTensor)]
        seen.append(sum(p.numel() for p in whole))
        return fully_shard(unit, **options)

    def seen_from(unit):
        return [p for p in unit.parameters() if not p.is_meta]

    with mock.patch.object(data_parallel, "fully_shard", watch):
        parallel_net(Cell(dp=2, zero=3))
    return max(seen)


def test_weights_come_unit_by_unit():
    block = sum(p.numel() for p in make_net(Cell()).blocks[0].parameters())
    assert run_ranks(largest_resident, 2) == [block] * 2


def wrong_world(rank: int) -> None:
    parallel_net(Cell(dp=4))


def test_world_size_must_be_the_plans():
    outcomes = run_outcomes(wrong_world, 2)
    assert all("the plan is for 4 ranks" in (outcome.error or "") for outcome in outcomes)


def different_plans(rank: int) -> None:
    with pytest.raises(PlanError, match="the ranks hold different plans"):
        parallel_net(replace(Cell(dp=2), num_microbatches=1 + rank))


def test_ranks_must_hold_the_same_plan():
    run_ranks(different_plans, 2)


def raise_on_one(rank: int) -> None:
    pm = parallel_net(Cell(dp=2, zero=3))
    batch = pm.shard_batch(net_batch(BATCH, torch.float64))
    if rank == 1:
        batch = {name: value[1:] for name, value in batch.items()}
    pm.train_step(batch)
    dist.barrier()


def test_a_rank_that_raises_ends_the_others():
    first, second = run_outcomes(raise_on_one, 2, timeout_s=10)
    assert not first.ok
    assert "drop a last batch of another size" in (second.error or "")
