"""Hybrid sharding in rows: how many replicas their words mean."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoplan.validation.published.numbers import zero_stage
from autoplan.validation.published.rows import IncompleteRowError
from autoplan.validation.setups.configuration import configuration_of
from autoplan.validation.setups.setup import Setup
from tests.unit.measured_rows import row_of

# 128 data-parallel ranks on 16 nodes of 8.
SHARDED = {
    "framework": "PyTorch FSDP2", "n_gpus": "128", "dp": "128", "tp": "1", "pp": "1", "vpp": "",
    "grad_accum": "", "micro_batch": "1", "global_batch_seqs": "128", "zero": "3",
}  # fmt: skip


def run_of(folder: Path, **changes: str) -> tuple[Setup, tuple[str, ...]]:
    configuration = configuration_of(row_of(folder, **SHARDED | changes))
    return configuration.choices[0], configuration.assumed


@pytest.mark.parametrize(
    ("changes", "replicas"),
    [
        ({"zero": "HSDP 8x16"}, 8),
        ({"zero": "HSDP (8 x 16)"}, 8),
        ({"zero": "3 (HSDP, FSDP 8)"}, 16),
        ({"zero": "3 (HSDP, shard size 32)"}, 4),
        ({"zero": "HYBRID_SHARD, 4 replicas"}, 4),
        ({"zero": "3 (hybrid shard 64)"}, 2),
        ({"notes": "HSDP: dp_replicate=2, dp_shard=64"}, 2),
        ({"framework": "PyTorch HSDP", "zero": "3 (16 shards)"}, 8),
        ({"zero": "3 (HSDP 1x128)"}, 1),
        ({"zero": "3 (HSDP 128x1)"}, 128),
    ],
)
def test_stated_groups(tmp_path, changes, replicas) -> None:
    run, assumed = run_of(tmp_path, **changes)
    assert (run.zero, run.replicas, run.dp) == (3, replicas, 128)
    assert not any("of a node" in each for each in assumed)


@pytest.mark.parametrize(
    "changes",
    [
        {"zero": "HSDP"},
        {"zero": "HYBRID_SHARD"},
        {"zero": "3 (hybrid sharding)"},
        {"zero": "SHARD within node"},
        {"notes": "replicated across nodes, sharded within a node"},
        {"framework": "PyTorch HSDP", "zero": ""},
        {"framework": "torchtitan HSDP"},
    ],
)
def test_groups_of_a_node_where_no_number_is_stated(tmp_path, changes) -> None:
    run, assumed = run_of(tmp_path, **changes)
    assert (run.zero, run.replicas) == (3, 16)
    assert "hybrid sharding: groups of 8 shards, the ranks of a node" in assumed


def test_tensor_parallel_ranks_take_their_part_of_a_node(tmp_path) -> None:
    run, _ = run_of(tmp_path, zero="HSDP", tp="2", dp="64", global_batch_seqs="64")
    assert (run.replicas, run.dp * run.cp // run.replicas) == (16, 4)


def test_the_order_of_two_numbers_is_said(tmp_path) -> None:
    _, assumed = run_of(tmp_path, zero="HSDP 8x16")
    assert "hybrid sharding: 8 replicas of 16 shards" in assumed


@pytest.mark.parametrize(
    "changes",
    [
        {"zero": "3 (FSDP 8)"},
        {"zero": "3", "notes": "no HSDP"},
        {"zero": "3", "notes": "fp32 master sharded; fp8 (delayed/hybrid)"},
        {"zero": "3", "precision": "fp8 hybrid", "gpu": "H100-SXM-80GB", "framework": "torchtitan"},
    ],
)
def test_other_words_share_over_all_ranks(tmp_path, changes) -> None:
    assert run_of(tmp_path, **changes)[0].replicas == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"zero": "HSDP 8x8"}, "8 replicas of 8 shards are not 128 ranks"),
        ({"zero": "3 (HSDP, FSDP 24)"}, "groups of 24 shards do not divide 128 ranks"),
        ({"zero": "3 (HSDP, FSDP 0)"}, "groups of 0 shards"),
        ({"zero": "HSDP, 0 replicas"}, "0 replicas of 128 shards"),
        ({"zero": "0", "notes": "HSDP"}, "hybrid sharding with ZeRO 0"),
        ({"zero": "3 (HSDP, FSDP 2)", "ep": "4", "moe_experts": "8", "moe_topk": "2",
          "moe_ffn": "49152"}, "ep 4 across groups of 2 shards"),
    ],
)  # fmt: skip
def test_groups_that_do_not_hold_together_are_refused(tmp_path, changes, reason) -> None:
    with pytest.raises(IncompleteRowError, match=reason):
        run_of(tmp_path, **changes)


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.sampled_from(["8", "16", "0", "x", " ", "=", "FSDP", "shards", "replicas"])))
def test_any_words_make_whole_groups_or_a_reason(tmp_path, words) -> None:
    try:
        run, _ = run_of(tmp_path, notes="HSDP" + "".join(words))
    except IncompleteRowError:
        return
    assert 128 % run.replicas == 0


@pytest.mark.parametrize(
    ("cell", "stage"),
    [("HSDP", 3), ("_HYBRID_SHARD_ZERO2", 2), ("HYBRID_SHARD", 3), ("FULL_SHARD", 3),
     ("SHARD_GRAD_OP", 2), ("NO_SHARD", 0), ("hybrid shard", 3)],
)  # fmt: skip
def test_names_of_stages(cell: str, stage: int) -> None:
    assert zero_stage(cell) == stage
