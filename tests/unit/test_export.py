"""Plans as configurations of other frameworks, read back by what reads them there."""

from __future__ import annotations

import json
import math
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autoplan.cli import main
from autoplan.errors import PlanError
from autoplan.export.decisions import Decisions
from autoplan.export.frameworks import FRAMEWORKS, export
from autoplan.export.megatron import layout
from autoplan.plan import MeshPlan, Plan
from autoplan.plan_io import save
from tests.unit import sample_pipeline, sample_plan

STAGED = sample_pipeline.PIPELINE
FLAT = replace(
    sample_plan.PLAN,
    mesh=MeshPlan(dp=4, tp=2),
    zero=3,
    replicas=2,
    regions=(
        sample_plan.ROOT,
        replace(sample_plan.LAYERS, recomputed=sample_plan.LAYERS.blocks, inputs=("Shard(1)",)),
    ),
)


def shell(plan: Plan, to: str) -> list[str]:
    """The words of an exported shell file."""
    (text,) = export(plan, to).files.values()
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return shlex.split("\n".join(lines).replace("\\\n", " "))


def after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_megatron_has_the_mesh_and_the_batch() -> None:
    words = shell(STAGED, "megatron")
    mesh = STAGED.mesh
    assert after(words, "--tensor-model-parallel-size") == str(mesh.tp)
    assert after(words, "--pipeline-model-parallel-size") == str(mesh.pp)
    assert after(words, "--micro-batch-size") == str(STAGED.microbatch)
    assert after(words, "--global-batch-size") == str(STAGED.job.global_batch)


def test_the_layout_has_every_layer_and_both_ends_once() -> None:
    """Megatron reads stages from left to right: E the embedding, t a layer, L the loss."""
    stages = layout(Decisions(STAGED)).split("|")
    assert [stage.count("t") for stage in stages] == [len(s.blocks) for s in STAGED.stages]
    assert stages[0].startswith("E")
    assert stages[-1].endswith("L")
    assert "".join(stages).count("E") == "".join(stages).count("L") == 1


def test_hybrid_sharding_in_every_framework() -> None:
    assert after(shell(FLAT, "megatron"), "--num-distributed-optimizer-instances") == "2"
    titan = shell(FLAT, "torchtitan")
    assert after(titan, "--parallelism.data-parallel-replicate-degree") == "2"
    assert after(titan, "--parallelism.data-parallel-shard-degree") == "2"
    settings = json.loads(export(FLAT, "deepspeed").files["ds_config.json"])
    assert settings["zero_optimization"]["zero_hpz_partition_size"] == 2
    text = export(FLAT, "accelerate").files["accelerate.yaml"]
    assert "  parallelism_config_dp_replicate_size: 2\n" in text
    assert "  parallelism_config_dp_shard_size: 2\n" in text


def test_deepspeed_batches_multiply() -> None:
    """``train_batch_size`` is microbatch x accumulation x data-parallel ranks, or it refuses."""
    settings = json.loads(export(FLAT, "deepspeed").files["ds_config.json"])
    product = settings["train_micro_batch_size_per_gpu"] * settings["gradient_accumulation_steps"]
    assert FLAT.microbatch * FLAT.num_microbatches == product


def test_what_is_left_out_is_said() -> None:
    assert "operators run again" in " ".join(export(STAGED, "megatron").left_out)
    assert "ZeRO 2: weights are sharded" in " ".join(
        export(replace(FLAT, zero=2), "torch").left_out
    )
    again = replace(sample_plan.LAYERS, recomputed_operators=("mul",), reconverted_inputs=(0,))
    words = " ".join(export(replace(FLAT, regions=(again,)), "torch").left_out)
    assert "single operators that run again" in words
    assert "converted again in the backward" in words


@pytest.mark.parametrize("to", ["torch", "accelerate"])
def test_what_has_no_pipelines_refuses_them(to: str) -> None:
    with pytest.raises(PlanError, match=f"--to {to}: pp={STAGED.mesh.pp}.*--pin pp=1"):
        export(STAGED, to)


@pytest.mark.parametrize("zero", range(4))
def test_sizes_of_accelerate_multiply_to_its_processes(zero: int) -> None:
    plan = replace(FLAT, zero=zero, replicas=2 if zero else 1)
    text = export(plan, "accelerate").files["accelerate.yaml"]
    found = dict(line.strip().split(": ") for line in text.splitlines() if ": " in line)
    sizes = [int(size) for name, size in found.items() if name.startswith("parallelism_config_")]
    assert math.prod(sizes) == int(found["num_processes"]) == plan.job.world_size


def test_the_script_is_python_and_names_every_block() -> None:
    text = export(FLAT, "torch").files["parallel.py"]
    compile(text, "parallel.py", "exec")
    assert all(repr(block) in text for block in sample_plan.BLOCKS)


def test_the_command_writes_files_and_says_what_is_missing(tmp_path: Path, capsys) -> None:
    save(FLAT, tmp_path / "plan.json")
    for name in FRAMEWORKS:
        assert main(["export", str(tmp_path / "plan.json"), "--to", name, "-o", str(tmp_path)]) == 0
    assert len(list(tmp_path.iterdir())) == 1 + len(FRAMEWORKS)
    assert "not in it (DeepSpeed" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "plan.json"), "--to", "jax"]) == 1
    assert "use torchtitan, megatron" in capsys.readouterr().err


@pytest.mark.parametrize("plan", [STAGED, FLAT], ids=["staged", "flat"])
def test_torchtitan_parses_its_command(plan: Plan) -> None:
    pytest.importorskip("torchtitan", reason="torchtitan is not installed")
    named = replace(plan.job.model, name="llama3-8b")
    words = shell(replace(plan, job=replace(plan.job, model=named)), "torchtitan")
    arguments = words[words.index("torchtitan.train") + 1 :]
    code = (
        "import sys; from torchtitan.config import ConfigManager as C; C().parse_args(sys.argv[1:])"
    )
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True)


def test_megatron_parses_the_layout() -> None:
    parser = pytest.importorskip(
        "megatron.core.transformer.pipeline_parallel_layer_layout",
        reason="megatron-core is not installed",
    )
    parsed = parser.PipelineParallelLayerLayout(layout(Decisions(STAGED)), STAGED.mesh.pp)
    parsed.validate_layer_layout(len(Decisions(STAGED).blocks), 0)


def test_accelerate_reads_its_file(tmp_path: Path) -> None:
    config = pytest.importorskip(
        "accelerate.commands.config.config_args", reason="accelerate is not installed"
    )
    path = tmp_path / "accelerate.yaml"
    path.write_text(export(FLAT, "accelerate").files["accelerate.yaml"], encoding="utf-8")
    found = config.load_config_from_file(str(path))
    assert found.num_processes == FLAT.job.world_size


def test_deepspeed_reads_its_file(tmp_path: Path) -> None:
    zero = pytest.importorskip("deepspeed.runtime.zero.config", reason="deepspeed is not installed")
    settings = json.loads(export(FLAT, "deepspeed").files["ds_config.json"])
    assert zero.DeepSpeedZeroConfig(**settings["zero_optimization"]).stage == FLAT.zero
