"""Seconds of a pass from its kernels, its messages and what the host needs to start them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.validation.ranks.stages import chunks
from autoplan.validation.setups.setup import Setup
from autoplan.validation.step.clock import Clock
from autoplan.validation.step.optimizer_step import KERNELS, optimizer_s
from autoplan.validation.step.passes import Message, Pass
from autoplan.validation.step.step_time import step_of
from cost_models.collectives import collective_s
from cost_models.compute import kernel_s
from cost_models.peaks import streaming_bytes_per_s
from cost_models.work import Gemm, Streaming
from hardware_profiles.load import load
from tests.unit.memory_setups import FSDP2, LLAMA2_7B, LLAMA3_8B, MEGATRON, gpt, setup

A100 = load("dgx-a100-80g")
NO_HOST = replace(MEGATRON, host_s=0.0)
PRODUCT = Gemm(m=4096, n=4096, k=4096, dtype="bfloat16")
PRODUCT_S = kernel_s(PRODUCT, A100.device)
SUM = Message(kind="all_reduce", nbytes=2**26, axis="tp")
SUM_S = collective_s("all_reduce", 2**26, 8, 8, A100)


def clock(run: Setup) -> Clock:
    return Clock(run, A100)


def test_messages_stand_between_kernels_or_run_beside_them() -> None:
    over = clock(setup(gpt(1, 1024, 16), NO_HOST, tp=8))
    between = over.spent(Pass(kernels=(PRODUCT, PRODUCT), messages=(SUM,)))
    assert between.compute_s == pytest.approx(2 * PRODUCT_S)
    assert between.exposed_comm_s == pytest.approx(SUM_S)
    beside = over.spent(Pass(kernels=(PRODUCT, PRODUCT), messages=(replace(SUM, beside=True),)))
    hidden = A100.overlap_efficiency * min(SUM_S, 2 * PRODUCT_S)
    assert beside.exposed_comm_s == pytest.approx(SUM_S - hidden)
    under = over.spent(Pass(messages=(replace(SUM, beside=True),)), beside_s=PRODUCT_S)
    assert under.exposed_comm_s == pytest.approx(
        SUM_S - A100.overlap_efficiency * min(SUM_S, PRODUCT_S)
    )


def test_the_host_sets_the_pace_of_small_kernels() -> None:
    slow = clock(setup(gpt(1, 1024, 16), replace(MEGATRON, host_s=1e-4), tp=8))
    small = Pass(kernels=(Streaming(bytes=1, kernels=5), replace(PRODUCT, m=16, n=16)))
    assert slow.spent(small).total_s == pytest.approx(6e-4)
    with_message = slow.spent(small + Pass(messages=(SUM,)))
    assert with_message.total_s == pytest.approx(max(7e-4, with_message.exposed_comm_s))
    large = Pass(kernels=(replace(PRODUCT, m=2**18),))
    assert slow.spent(large).compute_s == kernel_s(replace(PRODUCT, m=2**18), A100.device)


@pytest.mark.parametrize(
    ("axes", "axis", "ranks", "per_node"),
    [
        ({"tp": 8, "dp": 4}, "tp", 8, 8),
        ({"tp": 16, "dp": 4}, "tp", 16, 8),
        ({"tp": 2, "cp": 4, "dp": 2}, "cp", 4, 4),
        ({"tp": 4, "cp": 4, "dp": 2}, "cp", 4, 2),
        ({"tp": 8, "cp": 4, "dp": 2}, "cp", 4, 1),
        ({"tp": 2, "dp": 8, "ep": 8}, "ep", 8, 4),
        ({"dp": 64, "ep": 16}, "ep", 16, 8),
    ],
)
def test_ranks_of_a_group_share_nodes_with_those_that_are_nearer(
    axes: dict[str, int], axis: str, ranks: int, per_node: int
) -> None:
    """Neighbours are tensor-parallel, then context-parallel, then data-parallel ranks."""
    found = clock(setup(LLAMA3_8B, NO_HOST, **axes)).collective_s("all_gather", 2**24, axis)
    assert found == collective_s("all_gather", 2**24, ranks, per_node, A100)


@pytest.mark.parametrize(("tp", "per_node"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_data_parallel_ranks_are_a_tensor_parallel_group_apart(tp: int, per_node: int) -> None:
    found = clock(setup(LLAMA3_8B, NO_HOST, tp=tp, dp=16)).data_parallel_s("all_reduce", 2**28)
    assert found == collective_s("all_reduce", 2**28, 16, per_node, A100)


def test_stages_send_activations_once_or_split_over_tensor_parallel_ranks() -> None:
    """Narayanan et al. 2021, section 4.1: 1/t of them over the network, then a gather."""
    model, whole = gpt(8, 4096, 32), 2 * 2048 * 4096
    plain = setup(model, replace(MEGATRON, gathers_p2p=False), tp=8, pp=4)
    sent = collective_s("send_recv", whole, 2, 1, A100)
    assert clock(plain).stage_send_s() == sent
    scattered = clock(setup(model, MEGATRON, tp=8, pp=4)).stage_send_s()
    gather = collective_s("all_gather", whole, 8, 8, A100)
    assert scattered == collective_s("send_recv", whole / 8, 2, 1, A100) + gather
    split = clock(setup(model, MEGATRON, tp=8, pp=4, sequence_parallel=True)).stage_send_s()
    assert split == collective_s("send_recv", whole / 8, 2, 1, A100)
    near = clock(setup(model, NO_HOST, pp=4)).stage_send_s()
    assert near == collective_s("send_recv", whole, 2, 2, A100)


def test_the_optimizer_streams_its_states() -> None:
    """Adam by hand: weight, gradient and two moments read, all but the gradient written."""
    run = setup(LLAMA2_7B, FSDP2, dp=8, zero=3)
    parameters = LLAMA2_7B.parameters() / 8
    spent = optimizer_s(clock(run), chunks(run)) - KERNELS * A100.device.launch_s
    least = 4 * (4 + 3) * parameters / streaming_bytes_per_s(A100.device)
    assert least < spent < 4 * least
    alone = replace(run, zero=0)
    assert optimizer_s(clock(alone), chunks(alone)) > 7 * spent


def test_experts_are_updated_by_the_ranks_that_hold_them() -> None:
    model = replace(LLAMA3_8B, experts=8, experts_per_token=2, expert_ffn=14336)
    whole = setup(model, MEGATRON, dp=8, zero=1)
    split = replace(whole, ep=8)
    one, other = (optimizer_s(clock(run), chunks(run)) for run in (whole, split))
    assert one == pytest.approx(other)


@pytest.mark.parametrize("tuning", ["lora", "adapter", "adapter-v2"])
def test_only_adapters_are_updated(tuning: str) -> None:
    run = setup(LLAMA2_7B, FSDP2, tuning=tuning)
    whole_s = optimizer_s(clock(replace(run, tuning="all")), chunks(run))
    assert 0 < optimizer_s(clock(run), chunks(run)) < 0.01 * whole_s


def test_the_first_layers_of_an_adapter_have_no_backward() -> None:
    """LLaMA-Adapter starts at the third layer: one and two layers only go forward."""
    none, one, two, three, four = (
        step_of(setup(replace(LLAMA2_7B, layers=layers), FSDP2, tuning="adapter"), A100).compute_s
        for layers in (0, 1, 2, 3, 4)
    )
    assert two - one == pytest.approx(one - none)
    assert four - three == pytest.approx(three - two)
    assert three - two > 2 * (two - one)
