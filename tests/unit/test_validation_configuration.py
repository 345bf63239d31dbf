"""Setups of published runs against the runs' own statements and the models' published sizes."""

from __future__ import annotations

import contextlib
import csv
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoplan.validation.predict import predictions_of
from autoplan.validation.published.rows import IncompleteRowError, MeasuredRow, read_rows
from autoplan.validation.setups.configuration import configuration_of
from autoplan.validation.setups.frameworks import usage_of
from autoplan.validation.setups.precisions import eight_bit, named_dtypes
from autoplan.validation.setups.setup import Setup
from tests.unit.measured_rows import COMPLETE, csv_text, row_of

DATA = Path(__file__).parents[2] / "benchmarks" / "data"
ROWS = {
    row.id: row
    for name in ("training", "training_bulk")
    for row in read_rows(DATA / f"{name}.csv").rows
}
LAYERS_OPEN = {"layers": "", "hidden": "", "heads": "", "kv_heads": "", "head_dim": "", "ffn": ""}


def setup_of(row: MeasuredRow) -> Setup:
    """The only setup of a row, or the first of several."""
    return configuration_of(row).choices[0]


def test_every_complete_row_is_priced() -> None:
    for row in ROWS.values():
        if row.complete and row.scored:
            setup_of(row)


def test_what_a_row_states_is_what_its_setup_says() -> None:
    setup = setup_of(ROWS["korth-530B-ss"])
    mesh = (setup.tp, setup.pp, setup.dp, setup.virtual_stages, setup.gpus)
    assert mesh == (8, 35, 1, 3, 280)
    assert (setup.microbatch, setup.microbatches, setup.seq_len) == (1, 280, 2048)
    assert (setup.recompute, setup.attention, setup.sequence_parallel) == (
        "attention",
        "scores",
        True,
    )
    assert (setup.compute_dtype, setup.schedule) == ("float16", "interleaved_1f1b")
    assert setup.cluster == "dgx-a100-80g"


def test_setups_hold_together() -> None:
    for row in ROWS.values():
        try:
            setup = setup_of(row)
        except IncompleteRowError:
            continue
        assert setup.tp * setup.pp * setup.dp * setup.cp == setup.gpus == row.n_gpus
        if row.global_batch_seqs is not None:
            assert setup.global_batch == row.global_batch_seqs


def test_what_a_row_leaves_open_has_several_choices() -> None:
    choices = configuration_of(ROWS["ptdp-t1-06"]).choices
    assert {each.microbatch * each.microbatches for each in choices} == {56}
    assert {each.microbatch for each in choices} == {1, 2, 4, 7, 8, 14, 28, 56}
    # interleaved chunks need microbatches in whole rounds of the four stages
    assert {each.virtual_stages for each in choices if each.microbatches % 4} == {1}
    assert {each.virtual_stages for each in choices if each.microbatches == 28} == {1, 3, 5, 15}


def test_the_fastest_choice_that_fits_is_taken_and_said(tmp_path: Path) -> None:
    row = row_of(tmp_path, micro_batch="", grad_accum="")
    (prediction,) = predictions_of([row])
    assert prediction.setup is not None
    assert any("the fastest" in each for each in prediction.assumed)
    stated = str(prediction.setup.microbatch)
    (same,) = predictions_of([row_of(tmp_path, micro_batch=stated, grad_accum="")])
    assert same.predicted_s == prediction.predicted_s
    for size in ("1", "2", "4"):
        (other,) = predictions_of([row_of(tmp_path, micro_batch=size, grad_accum="")])
        assert other.out_of_memory or other.predicted_s >= prediction.predicted_s


def test_torchtitan_cuts_a_ranks_batch_into_as_many_microbatches_as_stages() -> None:
    plain, interleaved = setup_of(ROWS["tt-t5-1"]), setup_of(ROWS["tt-t5-2"])
    assert (plain.microbatch, plain.microbatches, plain.global_batch) == (4, 8, 256)
    assert (interleaved.microbatch, interleaved.microbatches) == (2, 16)
    assert (plain.virtual_stages, interleaved.virtual_stages) == (1, 2)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Llama-2-7B", 6.738e9),
        ("LLAMA2-13B", 13.016e9),
        ("llama 2 70b", 68.977e9),
        ("Meta-Llama-3-8B", 8.030e9),
        ("llama3.1-70b", 70.554e9),
        ("llama3-405b", 405.853e9),
        ("Llama 3.2 1B", 1.236e9),
        ("Llama-3.2-3B-Instruct", 3.213e9),
        ("LLaMA-65B", 65.286e9),
        ("LLaMA 33B", 32.529e9),
        ("Mistral-7B-v0.1", 7.242e9),
        ("Mixtral 8x7B", 46.703e9),
        ("Mixtral-8x22B", 140.63e9),
        ("phi-1.5 1.3 B", 1.418e9),
        ("StableLM Alpha 3 B", 3.638e9),
        ("Falcon 40 B", 41.30e9),
        ("Pythia-6.9b", 6.857e9),
        ("Pythia 12B", 11.846e9),
        ("GPT-NeoX-20B", 20.556e9),
        ("GPT-3 175B", 174.6e9),
        ("gpt2-xl", 1.558e9),
        ("GPT2", 0.1244e9),
    ],
)
def test_public_models_have_their_published_number_of_parameters(
    tmp_path: Path, name: str, parameters: float
) -> None:
    row = row_of(
        tmp_path, **LAYERS_OPEN, model=name, arch="", ffn_type="", vocab="", tp="1", pp="1",
        vpp="1", dp="8", n_gpus="8", global_batch_seqs="8", grad_accum="1", framework="litgpt",
    )  # fmt: skip
    model = setup_of(row).model
    positions = 0 if model.rotary else (1024 if "2" in name else 2048)
    assert model.parameters(positions) == pytest.approx(parameters, rel=0.01)


def test_built_models_have_the_size_that_their_source_counts() -> None:
    """llm-foundry counts parameters exactly, its learned positions included."""
    with (DATA / "training_bulk.csv").open(newline="") as file:
        counted = {
            row["id"]: 1e9 * float(row["n_params_b"])
            for row in csv.DictReader(file)
            if row["set"] == "llm-foundry-mpt"
        }
    assert len(counted) == 216
    for name, parameters in counted.items():
        setup = setup_of(ROWS[name])
        assert setup.model.parameters(setup.seq_len) == pytest.approx(parameters, rel=0.002)


def test_low_rank_updates_have_the_stated_number_of_parameters() -> None:
    """Rank 8 on queries and values, as litgpt's defaults: 8 x (inputs + outputs) each."""
    for row in ROWS.values():
        stated = re.match(r"trainable params ([\d,]+)", row.notes)
        if stated and row.task == "lora":
            setup = setup_of(row)
            model = setup.model
            each = 8 * (2 * model.hidden + model.attention_width + model.kv_width)
            assert model.layers * each == int(stated[1].replace(",", ""))
            assert setup.tuning == "lora"
            assert setup.quantised == ("nf4" in row.precision)


@pytest.mark.parametrize(
    ("gpu", "memory", "network", "cluster"),
    [
        ("A100-SXM-80GB", "80", "Selene DGX A100 8x HDR200", "dgx-a100-80g"),
        ("NVIDIA A100-SXM4-40GB", "", "8 x 200 Gb/s InfiniBand", "dgx-a100-40g"),
        ("8xA100 80GB", "", "800 Gbps/node HDR IB", "hgx-a100-80g"),
        ("A100-SXM (p4d class)", "", "NVLink intra; 800 Gbps/node", "p4d"),
        ("A100 80GB", "80", "4x100 Gb/s EFA per node", "p4de"),
        ("A100-PCIe-80GB", "80", "", "a100-pcie-80g"),
        ("NVIDIA H100 80GB HBM3", "", "NVLink8 + 400G IB/GPU", "dgx-h100"),
        ("H100", "", "", "dgx-h100"),
        ("A100", "", "", "dgx-a100-80g"),
        ("h100 sxm5", "80", "NDR400 per GPU", "dgx-h100"),
        ("H100-SXM-96GB (HBM2e)", "96", "400Gb/s RDMA per GPU", "grand-teton-h100"),
        ("A100-80GB", "80", "RoCE, 1.6 Tbps/node", "dgx-a100-80g"),
        ("A100-80GB", "80", "NVLink 600 GB/s + IB HDR 200", "dgx-a100-80g"),
        ("H200", "141", "8x 400 Gb/s", "dgx-h200"),
        ("GB200 NVL72", "", "", "gb200-nvl72"),
        ("MI300X", "192", "", "mi300x-node"),
        ("RTX 4090", "24", "", "rtx4090-box"),
        ("A10G", "", "", "a10g-node"),
        ("NVIDIA A10G 24GB", "", "", "a10g-node"),
        ("L4", "", "", "l4-node"),
        ("V100-SXM2-32GB", "32", "", "dgx-v100"),
    ],
)  # fmt: skip
def test_devices_however_they_are_spelled(
    tmp_path: Path, gpu: str, memory: str, network: str, cluster: str
) -> None:
    row = row_of(tmp_path, gpu=gpu, gpu_mem_gb=memory, interconnect=network, gpus_per_node="")
    assert setup_of(row).cluster == cluster


def test_a_network_without_profile_is_said(tmp_path: Path) -> None:
    assumed = configuration_of(row_of(tmp_path, interconnect="100 Gb/s a node")).assumed
    assert any(each.startswith("network: 100") for each in assumed)
    row = row_of(tmp_path, interconnect="Selene DGX A100 8x HDR200")
    assert configuration_of(row).assumed == ()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpu": "A800-80GB"}, "gpu A800-80GB: no hardware profile"),
        ({"gpu": "H100-NVL"}, "no hardware profile"),
        ({"gpu": "A100-SXM-64GB", "gpu_mem_gb": "64"}, "profiles have 40, 80 GB"),
        ({"gpu": "GH200"}, "no hardware profile"),
        ({"gpu": "TPU v5p"}, "no hardware profile"),
        ({"gpu": "GeForce RTX 4090 Laptop GPU", "gpu_mem_gb": "16"}, "no hardware profile"),
        ({"gpu": "RTX 4090D", "gpu_mem_gb": "24"}, "no hardware profile"),
        ({"gpu": "RTX 3090 Ti", "gpu_mem_gb": "24"}, "no hardware profile"),
        ({"gpu": ""}, "gpu is not stated"),
        ({"dp": "7"}, "is 672, not 768 GPUs"),
        ({"tp": "7", "dp": ""}, "does not divide 768 GPUs"),
        ({"tp": "", "pp": "", "dp": ""}, "tp and pp not stated for 768 GPUs"),
        ({"grad_accum": "100"}, "is not the global batch 1536"),
        ({"global_batch_seqs": "1601"}, "does not split over dp 8"),
        ({"micro_batch": "", "global_batch_seqs": "", "grad_accum": ""}, "neither micro_batch"),
        ({"heads": "100", "kv_heads": "", "head_dim": ""}, "does not split over 100 heads"),
        ({"heads": "12"}, "12 heads do not split over tp 8"),
        ({"layers": "6"}, "6 layers on 12 stages"),
        ({"vpp": "16"}, "96 layers on 12 x 16 chunks"),
        ({"seq_len": ""}, "seq_len is not stated"),
        ({"task": "inference"}, "task inference: only training is priced"),
        ({"task": "DPO"}, "only training is priced"),
        ({"arch": "t5"}, "only gpt, llama and moe"),
        ({"precision": "int7"}, "precision 'int7' is not priced"),
        ({"precision": "fp32"}, "precision 'fp32' is not priced"),
        ({"precision": "fp8"}, "A100-SXM4-80GB has no float8_e4m3fn"),
        ({"precision": "bf16", "gpu": "V100-SXM2-32GB", "gpu_mem_gb": ""}, "has no bfloat16"),
        ({"layers": "1000000", "pp": "12"}, "layers 1000000: more than 4096"),
        ({"global_batch_seqs": "99999999992", "grad_accum": ""}, "stages x microbatches"),
        ({"recompute": "full on 20 of 32 layers"}, "layers differ"),
        ({"recompute": "full: first 4 layers"}, "layers differ"),
        ({"recompute": "full (12 layers)"}, "layers differ"),
        ({"recompute": "full, 50 %"}, "layers differ"),
        ({"recompute": "selective 2"}, "layers differ"),
        ({"recompute": "sometimes"}, "is not known"),
        ({"tp": "eight"}, "tp: 'eight' is not a number"),
        ({"offload": "optimizer to CPU"}, "offload"),
        ({"gpus_per_node": "16"}, "16 GPUs a node: dgx-a100-80g has 8"),
        ({**LAYERS_OPEN, "model": "Unheard Of 5B"}, "not a known public one"),
        ({"arch": "llama", "ffn_type": "swiglu", "ffn": ""}, "ffn is not stated"),
        ({"arch": "moe", "moe_experts": "8", "ffn_type": "swiglu"}, "moe_topk is not stated"),
    ],
)
def test_rows_that_cannot_be_priced_say_why(
    tmp_path: Path, changes: dict[str, str], reason: str
) -> None:
    with pytest.raises(IncompleteRowError, match=re.escape(reason)):
        setup_of(row_of(tmp_path, **changes))


def test_a_rounded_global_batch_gives_way_to_its_parts(tmp_path: Path) -> None:
    """GPT-NeoX-20B: 1538 is stated, 12 ranks x 4 sequences x 32 times are 1536."""
    row = row_of(
        tmp_path, n_gpus="96", tp="2", pp="4", dp="12", micro_batch="4", grad_accum="32",
        global_batch_seqs="1538",
    )  # fmt: skip
    configuration = configuration_of(row)
    assert configuration.choices[0].global_batch == 1536
    assert "global batch: 1536, where 1538 is stated" in configuration.assumed


def test_the_mesh_follows_from_the_devices(tmp_path: Path) -> None:
    setup = setup_of(row_of(tmp_path, dp="", grad_accum="", cp=""))
    assert (setup.dp, setup.cp, setup.microbatches) == (8, 1, 192)


def test_expert_ranks_beside_or_within_data_parallel_ranks(tmp_path: Path) -> None:
    """Both spell 64 data-parallel ranks in groups of 8 that share experts."""
    experts = {"arch": "moe", "moe_experts": "8", "moe_topk": "2", "moe_ffn": "14336", "pp": "12",
               "tp": "1", "ep": "8", "grad_accum": "24"}  # fmt: skip
    within = setup_of(row_of(tmp_path, **experts, dp="64"))
    beside = setup_of(row_of(tmp_path, **experts, dp="8"))
    assert within == beside
    assert (within.dp, within.ep) == (64, 8)


def test_a_mixture_of_experts(tmp_path: Path) -> None:
    row = row_of(
        tmp_path, arch="moe", ffn_type="swiglu", moe_experts="8", moe_topk="2", moe_ffn="14336",
        ep="8", model="some mixture",
    )  # fmt: skip
    setup = setup_of(row)
    assert (setup.model.experts, setup.model.experts_per_token, setup.model.expert_ffn) == (
        8,
        2,
        14336,
    )
    assert setup.ep == 8
    assert setup.model.gated


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("fp16 mixed", "float16"),
        ("bf16 autocast (FSDP mixed_precision=DEFAULT)", "bfloat16"),
        ("bf16 params/compute, fp32 master+reduce", "bfloat16"),
        ("float8 linear (tensorwise) + bf16", "float8_e4m3fn"),
        ("fp8 (delayed/hybrid)", "float8_e4m3fn"),
        ("FP8 hybrid", "float8_e4m3fn"),
        ("bf16-true + bnb.nf4-dq", "bfloat16"),
        ("BF16", "bfloat16"),
    ],
)
def test_precisions(tmp_path: Path, precision: str, dtype: str) -> None:
    row = row_of(tmp_path, precision=precision, gpu="H100-SXM-80GB")
    assert setup_of(row).compute_dtype == dtype


@pytest.mark.parametrize("words", ["", "no", "n/a", "-", "off", "False", "none"])
def test_words_for_no_offload(tmp_path: Path, words: str) -> None:
    assert setup_of(row_of(tmp_path, offload=words)) == setup_of(row_of(tmp_path, offload="no"))


@pytest.mark.parametrize(
    ("framework", "words", "recompute"),
    [
        ("Megatron-LM", "selective(attention)", "attention"),
        ("Megatron-LM", "selective", "attention"),
        ("torchtitan FSDP2", "selective (op)", "operators"),
        ("torchtitan FSDP2", "selective", "operators"),
        ("Megatron-LM", "SP only", "none"),
        ("Composer + PyTorch FSDP1", "full(per block)", "block"),
        ("Megatron-LM", "full (all 96 layers)", "block"),
        ("Megatron-LM", "none", "none"),
        ("litgpt", "", "block"),
    ],
)
def test_recomputation(tmp_path: Path, framework: str, words: str, recompute: str) -> None:
    row = row_of(tmp_path, framework=framework, recompute=words)
    assert setup_of(row).recompute == recompute


def test_ages_of_megatron(tmp_path: Path) -> None:
    """fp16 gradients in 2021, fp32 ones in 2022; overlapped messages since Megatron-Core."""
    first = usage_of(row_of(tmp_path)).framework
    second = usage_of(row_of(tmp_path, source="arXiv:2205.05198")).framework
    core = usage_of(
        row_of(tmp_path, framework="Megatron-Core r0.8", gpu="H100", source="")
    ).framework
    assert (first.gradient_bytes, second.gradient_bytes, core.gradient_bytes) == (2, 4, 4)
    assert not first.overlaps_reductions
    assert usage_of(row_of(tmp_path, pp="1")).framework.overlaps_reductions
    assert not second.overlaps_reductions
    assert core.overlaps_reductions


def test_stages_of_deepspeed(tmp_path: Path) -> None:
    """Only stage 3 overlaps by default; the bf16 optimizer (stages 0, 1) keeps fp32 gradients."""
    framework = {"framework": "Megatron-DeepSpeed", "precision": "bf16"}
    first = usage_of(row_of(tmp_path, **framework, zero="1")).framework
    third = usage_of(row_of(tmp_path, **framework, zero="3")).framework
    assert (first.gradient_bytes, first.overlaps_reductions) == (4, False)
    assert (third.gradient_bytes, third.overlaps_gathers) == (2, True)


def test_stated_parameters_that_the_sizes_do_not_give_are_said(tmp_path: Path) -> None:
    """12 layers x hidden^2 x 96 layers and the embedding: 174.6e9."""
    assert configuration_of(row_of(tmp_path, n_params_b="174.6")).assumed == ()
    (said,) = configuration_of(row_of(tmp_path, n_params_b="100")).assumed
    assert said == "sizes: as stated, 175e9 parameters; the source says 100e9"


def test_words_of_torchtitan(tmp_path: Path) -> None:
    eager = usage_of(row_of(tmp_path, framework="torchtitan FSDP2 eager")).framework
    rich = usage_of(
        row_of(tmp_path, framework="TorchTitan FSDP2 compile+float8 Async-TP")
    ).framework
    assert (eager.pointwise, eager.overlaps_tensor_parallel) == ("eager", False)
    assert (rich.pointwise, rich.overlaps_tensor_parallel) == ("compiled", True)
    assert (rich.gathered_bytes, rich.reduced_bytes, rich.dropout) == (2, 4, False)


def test_an_unknown_framework_is_taken_for_pytorch_and_said(tmp_path: Path) -> None:
    configuration = configuration_of(row_of(tmp_path, framework="OwnTrainer", source="a blog"))
    assert configuration.choices[0].framework.name == "PyTorch"
    assert configuration.assumed[0].startswith("framework: OwnTrainer; taken for PyTorch")


def test_sequences_of_varying_length_have_no_step_time(tmp_path: Path) -> None:
    row = row_of(tmp_path, seq_len="longest example 1304 tokens (variable)")
    configuration = configuration_of(row)
    assert configuration.choices[0].seq_len == 1304
    assert configuration.no_time is not None


@settings(
    deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    cells=st.dictionaries(
        st.sampled_from(sorted(set(COMPLETE) - {"id", "set", "quality"})),
        st.one_of(
            st.sampled_from(["", "1", "2", "8", "64", "3 (x)", "yes", "full", "H100", "FSDP", "0"]),
            st.text(max_size=8),
        ),
        max_size=6,
    )
)
def test_any_row_is_set_up_or_refused_by_name(tmp_path: Path, cells: dict[str, str]) -> None:
    clean = {name: cell.replace("\0", "") for name, cell in cells.items()}
    path = tmp_path / "runs.csv"
    path.write_bytes(csv_text(clean).encode("utf-8", "replace"))
    row = read_rows(path).rows[0]
    with contextlib.suppress(IncompleteRowError):
        _check(setup_of(row))


def _check(setup: Setup) -> None:
    assert setup.tp * setup.pp * setup.dp * setup.cp == setup.gpus
    assert min(setup.microbatch, setup.microbatches, setup.gpus_per_node) >= 1
    assert setup.model.heads % setup.tp == 0
    assert setup.pp * setup.virtual_stages <= setup.model.layers


@pytest.mark.parametrize(
    ("precision", "first"),
    [
        ("mxfp8", "float8_e4m3fn"),
        ("bf16 (fp8 off)", "bfloat16"),
        ("no fp8, bf16", "bfloat16"),
        ("bf16 params/compute, fp32 master+reduce", "bfloat16"),
        ("float8 linear (tensorwise) + bf16", "float8_e4m3fn"),
        ("tf32", None),
    ],
)
def test_the_precision_named_first_counts(precision: str, first: str | None) -> None:
    assert named_dtypes(precision)[0] == first
    assert eight_bit(precision) == (first == "float8_e4m3fn")
