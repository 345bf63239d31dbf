"""Training by a plan of one rank in bf16: on a GPU over NCCL; its logic on a CPU over gloo."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.device.training import alone, losses

RTOL = 2e-2
"""Losses of bf16, which has 8 bits, beside those of fp32."""

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.device
@needs_gpu
@pytest.mark.parametrize("compiler", [None, "inductor"], ids=["eager", "compiled"])
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("name", ["mlp", "gpt", "gpt tied", "gpt2", "llama"])
def test_a_gpu_trains_like_the_model(
    name: str, recompute: bool, compiler: str | None, tmp_path: Path
) -> None:
    _check("nccl", torch.device("cuda", 0), name, recompute, compiler, tmp_path)


@pytest.mark.parametrize(("name", "recompute"), [("mlp", False), ("gpt", True)])
def test_the_cpu_trains_like_the_model(name: str, recompute: bool, tmp_path: Path) -> None:
    _check("gloo", torch.device("cpu"), name, recompute, None, tmp_path)


@pytest.mark.slow
def test_the_cpu_trains_compiled(tmp_path: Path) -> None:
    _check("gloo", torch.device("cpu"), "gpt", False, "aot_eager", tmp_path)


def _check(
    backend: str,
    device: torch.device,
    name: str,
    recompute: bool,
    compiler: str | None,
    folder: Path,
) -> None:
    with alone(backend, device, folder):
        found = losses(name, device, recompute=recompute, compiler=compiler)
    assert found.program == pytest.approx(found.model, rel=RTOL)
