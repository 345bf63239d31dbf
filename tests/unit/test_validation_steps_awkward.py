"""Rows whose sizes do not fit together are refused by name or priced, never a crash."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoplan.validation.predict import Prediction, predictions_of
from autoplan.validation.setups.framework_features import MEGATRON_CORE, PYTORCH
from autoplan.validation.setups.setup import Setup
from autoplan.validation.step.step_time import step_of
from cost_models.compute import kernel_s
from cost_models.schedules import ScheduleError
from cost_models.work import FlashAttention, Gemm, Streaming
from hardware_profiles.load import load
from tests.unit.measured_rows import row_of
from tests.unit.memory_setups import LLAMA3_8B, MEGATRON, gpt, llama, setup

A100 = load("dgx-a100-80g")


def predicted(folder: Path, **cells: str) -> Prediction:
    return predictions_of([row_of(folder, **cells)])[0]


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"tp": "7", "n_gpus": "672"}, "96 heads do not split over tp 7"),
        ({"layers": "11"}, "11 layers on 12 stages"),
        ({"cp": "5", "n_gpus": "3840"}, "2048 tokens do not split over cp 5"),
        ({"cp": "3", "n_gpus": "768"}, "tp 8 x pp 12 x cp 3 does not divide 768 GPUs"),
        ({"layers": "0"}, "layers"),
        ({"hidden": "-12288"}, "hidden"),
        ({"seq_len": "nan"}, "seq_len"),
        ({"ep": "3"}, "ep 3 does not divide dp 8 x cp 1"),
        ({"moe_experts": "6", "moe_topk": "2", "ep": "4"}, "6 experts do not split over ep 4"),
        ({"vpp": "9"}, "96 layers on 12 x 9 chunks"),
        ({"vpp": "2", "grad_accum": "", "global_batch_seqs": "200"}, "multiple of 12 microbatches"),
        ({"precision": "fp8"}, "A100-SXM4-80GB has no float8"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, cells: dict[str, str], reason: str
) -> None:
    found = predicted(tmp_path, **cells)
    assert found.predicted_s is None
    assert reason in (found.skipped or "")


@pytest.mark.parametrize(
    "cells",
    [
        {"kv_heads": "4"},
        {"kv_heads": "12"},
        {"vocab": "50257", "framework": "torchtitan"},
        {"ffn": "50001"},
        {"vpp": "3"},
        {"layers": "97"},
        {"seq_len": "1"},
        {"micro_batch": "5", "grad_accum": ""},
        {"moe_experts": "512", "moe_topk": "1", "moe_ffn": "7", "seq_len": "4"},
    ],
)
def test_sizes_that_do_not_divide_are_priced(tmp_path: Path, cells: dict[str, str]) -> None:
    found = predicted(tmp_path, **cells)
    assert found.predicted_s is not None, found.skipped
    assert 0 < found.predicted_s < 1e6


AWKWARD = {
    **dict.fromkeys(("tp", "pp", "cp", "ep", "dp", "vpp"), ("1", "2", "3", "8", "")),
    "n_gpus": ("1", "8", "24", "768", ""),
    "layers": ("1", "7", "96"),
    "heads": ("1", "12", "96"),
    "kv_heads": ("1", "5", "96", "200", ""),
    "head_dim": ("1", "65", ""),
    "hidden": ("1", "100", "12288"),
    "ffn": ("1", "1001", ""),
    "vocab": ("1", "50257", ""),
    "seq_len": ("1", "2047", "131072"),
    "micro_batch": ("1", "3", ""),
    "global_batch_seqs": ("1", "5", "1536", ""),
    "grad_accum": ("1", "3", ""),
    "moe_experts": ("", "1", "3", "8"),
    "moe_topk": ("", "1", "9"),
    "zero": ("", "0", "1", "2", "3"),
    "gpus_per_node": ("", "1", "3", "8", "16"),
    "seq_parallel": ("yes", "no", ""),
    "recompute": ("full", "selective", "none", ""),
    "attn_impl": ("flash", "unfused", ""),
    "precision": ("bf16", "fp16", "fp8", "fp32", "nf4"),
    "task": ("pretrain", "lora", "adapter", "adapter_v2", "layer-forward", "layer-memory"),
    "framework": (
        *("Megatron-LM", "NeMo", "torchtitan", "DeepSpeed ZeRO-3", "litgpt", "Composer", "other"),
        *("torchtitan zero bubble", "Megatron-Core gpipe"),
    ),
    "gpu": ("A100-SXM-80GB", "H100-SXM-80GB", "V100-SXM-32GB", "MI300X", "GB200"),
    "gpu_mem_gb": ("",),
}


@settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_no_row_crashes(tmp_path: Path, data: st.DataObject) -> None:
    columns = data.draw(st.lists(st.sampled_from(sorted(AWKWARD)), unique=True, max_size=12))
    cells = {column: data.draw(st.sampled_from(AWKWARD[column]), column) for column in columns}
    found = predicted(tmp_path, **cells)
    assert found.skipped or found.predicted_s is not None
    if found.predicted_s is not None:
        assert isfinite(found.predicted_s)
        assert found.predicted_s > 0


@pytest.mark.parametrize(
    "run",
    [
        setup(LLAMA3_8B, MEGATRON_CORE, tp=64),
        setup(LLAMA3_8B, MEGATRON_CORE, cp=4096, seq_len=2048),
        setup(gpt(2, 1024, 16), MEGATRON_CORE, pp=8, microbatches=8),
        setup(llama(1, 1024, 16, 3, 2816), PYTORCH, tp=16, sequence_parallel=True, seq_len=3),
        setup(
            replace(LLAMA3_8B, experts=8, experts_per_token=2, expert_ffn=1), MEGATRON_CORE,
            tp=8, dp=16, ep=16,
        ),
        setup(replace(LLAMA3_8B, vocab=0), PYTORCH),
    ],
    ids=["more ranks than heads", "more ranks than tokens", "more stages than layers", "ragged",
         "more ranks than experts", "no vocabulary"],
)  # fmt: skip
def test_setups_beyond_their_sizes_have_a_finite_time(run: Setup) -> None:
    found = step_of(run)
    assert isfinite(found.step_s)
    assert found.step_s > 0


def test_schedules_that_do_not_exist_are_refused() -> None:
    run = setup(gpt(8, 1024, 16), PYTORCH, pp=4, microbatches=8, schedule="zbv")
    with pytest.raises(ScheduleError, match="use two stages per rank"):
        step_of(run)
    run = replace(run, virtual_stages=2)
    with pytest.raises(ScheduleError, match="use sends beside compute"):
        step_of(run)
    assert step_of(replace(run, framework=MEGATRON_CORE)).step_s > 0
    with pytest.raises(ScheduleError, match="use a multiple of 4 microbatches"):
        step_of(replace(run, schedule="interleaved_1f1b", microbatches=9))


@pytest.mark.parametrize("zero", ["m", "n", "k", "batch"])
def test_products_of_nothing_cost_nothing(zero: str) -> None:
    work = Gemm(m=64, n=64, k=64, dtype="bfloat16")
    assert kernel_s(replace(work, **{zero: 0}), A100.device) == 0


@pytest.mark.parametrize("zero", ["batch", "heads", "queries", "keys"])
def test_attention_to_nothing_costs_nothing(zero: str) -> None:
    work = FlashAttention(
        batch=1, heads=8, kv_heads=8, queries=64, keys=64, head_dim=64, value_dim=64,
        dtype="bfloat16", causal=True,
    )  # fmt: skip
    assert kernel_s(replace(work, **{zero: 0}), A100.device) == 0
    assert kernel_s(Streaming(bytes=0, kernels=0), A100.device) == 0


def test_a_model_without_layers_is_its_ends() -> None:
    """Nothing of a layer is left behind: no launch, no message."""
    run = setup(replace(gpt(4, 1024, 16), layers=0), MEGATRON, tp=2)
    one = setup(replace(gpt(4, 1024, 16), layers=1), MEGATRON, tp=2)
    two = setup(replace(gpt(4, 1024, 16), layers=2), MEGATRON, tp=2)
    none_s, one_s, two_s = (step_of(each).compute_s for each in (run, one, two))
    assert one_s - none_s == pytest.approx(two_s - one_s)
