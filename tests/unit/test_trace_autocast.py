"""Autocast in a model: its casts are those of eager PyTorch, or it is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autoplan
from autoplan.errors import UnsupportedModelError
from autoplan.job import Job, ModelSource
from autoplan.launch import runs_on_host
from autoplan.trace.capture import capture

_LIBRARY = torch.library.Library("autoplan_test", "FRAGMENT")
_LIBRARY.define("doubled_product(Tensor x, Tensor w) -> Tensor")
_LIBRARY.impl("doubled_product", lambda x, w: (x * 2.1) @ w, "CompositeImplicitAutograd")


class Cast(nn.Module):
    """Products, operators that autocast runs in float32, of the widest dtype, and as they come."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 16)
        self.conv, self.dtype = nn.Conv1d(1, 4, 3, padding=1), dtype

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=self.dtype):
            h = self.down(self.norm(F.gelu(self.up(x))))
            h = torch.cat([h, x], -1) @ self.up.weight
            with torch.autocast("cpu", enabled=False):
                x = x + F.linear(x, self.up.weight[:16])
            with torch.no_grad():
                shift = F.linear(x, self.up.weight).mean()
            q = h.view(-1, 2, 1, 8)
            h = h + F.scaled_dot_product_attention(q, x.view(-1, 2, 1, 8), q).flatten(1)
            h = torch.einsum("bi,bi->bi", h, self.conv(x.unsqueeze(1)).mean(1)) + shift
            first = F.mse_loss(h, y)
        return first + F.mse_loss(h.float().softmax(-1), y)


def batch(rows: int = 4) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {"x": torch.randn(rows, 16), "y": torch.randn(rows, 16)}


def gradients(module: nn.Module, loss: Callable[[], Tensor]) -> dict[str, Tensor]:
    module.zero_grad()
    found = loss()
    found.backward()
    named = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    return {"": found.detach(), **copy.deepcopy(named)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_casts_are_those_of_eager(dtype: torch.dtype) -> None:
    """To the last bit, forward and backward."""
    torch.manual_seed(0)
    model, inputs = Cast(dtype), batch()
    expected = gradients(model, lambda: model(**inputs))
    pm = autoplan.compile(model, inputs, global_batch=4, precision="fp32")
    found = gradients(pm, lambda: pm(**inputs))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_split_over_ranks() -> None:
    options = {"cluster": "cpu-gloo", "gpus_per_node": 2, "global_batch": 4, "precision": "fp32"}
    plan = autoplan.plan(Cast(), batch(), pins={"tp": 2}, **options)
    assert plan.warnings == ()
    found = autoplan.verify(plan, Cast(), batch())
    assert found.ok, [each for each in found.differences if not each.ok]


@pytest.mark.parametrize(
    ("kind", "on", "message"),
    [
        ("cpu", None, r"torch.autocast\('cpu'\) inside the model"),
        ("cuda", "cpu", r"torch.autocast\('cuda'\) inside the model"),
    ],
)
def test_autocast_of_other_devices_is_refused(kind: str, on: str | None, message: str) -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            with torch.autocast(kind, dtype=torch.bfloat16):
                return F.mse_loss(self.linear(x), y)

    with pytest.raises(UnsupportedModelError, match=message):
        capture(Other(), batch(), autocast_on=on)


def test_casts_within_an_operator_are_refused() -> None:
    class Within(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(16, 16))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                h = torch.ops.autoplan_test.doubled_product(x, self.weight)
            return F.mse_loss(h.float(), y)

    with pytest.raises(UnsupportedModelError, match=r"doubled_product.* casts what it makes"):
        capture(Within(), batch(), autocast_on="cpu")


@pytest.mark.parametrize("enabled", [False, True])
def test_nothing_flows_back_into_no_grad_inside(enabled: bool) -> None:
    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            h = self.linear(x)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                h = F.linear(h, self.linear.weight)
                with torch.no_grad():
                    held = F.linear(h, self.linear.weight)
                h = h + F.relu(held)
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                held = self.linear(h)
            return F.mse_loss(h + held, y)

    torch.manual_seed(0)
    model, inputs = Held(), batch()
    expected = gradients(model, lambda: model(**inputs))
    pm = autoplan.compile(model, inputs, global_batch=4, precision="fp32")
    found = gradients(pm, lambda: pm(**inputs))
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_autocast_is_written_out_for_clusters_of_cpus_alone() -> None:
    def job(cluster: str) -> Job:
        source = ModelSource(kind="object", name="Cast")
        return Job(model=source, cluster=cluster, nodes=1, gpus_per_node=1, global_batch=4)

    hosts = ("cpu-gloo", "dgx-h100", "nowhere.toml")
    assert [name for name in hosts if runs_on_host(job(name))] == ["cpu-gloo"]
