"""The table of ZeRO stages against PyTorch: FSDP2 alone and under its own pipeline schedule.

Ranks are pretended (a fake process group), shapes and dtypes are real.
"""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.testing._internal.distributed.fake_pg import FakeStore

from autoplan import capabilities
from cost_models.zero import ZERO_STAGES, zero_stage

RANKS = 4
WHOLE = (32, 64)


@pytest.fixture(scope="module")
def mesh():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield init_device_mesh("cpu", (1, RANKS), mesh_dim_names=("pp", "dp"))
    dist.destroy_process_group()


class Watched(nn.Module):
    """A product under FSDP2 that notes, at each of its forwards, what is held of it."""

    def __init__(self, mesh: DeviceMesh, *, reshards: bool):
        super().__init__()
        self.product = nn.Linear(WHOLE[1], WHOLE[0], bias=False)
        self.notes: list[tuple[bool, torch.Tensor | None]] = []
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        fully_shard(self.product, mesh=mesh, reshard_after_forward=reshards, mp_policy=policy)
        fully_shard(self, mesh=mesh, reshard_after_forward=reshards, mp_policy=policy)

    @property
    def _parameter(self):
        return self.product._get_fsdp_state()._fsdp_param_group.fsdp_params[0]

    def forward(self, inputs):
        is_gathered = tuple(self.product.weight.shape) == WHOLE
        is_gathered = is_gathered and not hasattr(self.product.weight, "placements")
        self.notes.append((is_gathered, self._parameter.unsharded_accumulated_grad))
        return self.product(inputs)


def test_the_planner_and_the_runtime_read_this_table():
    assert capabilities.ZERO_STAGES is ZERO_STAGES


@pytest.mark.parametrize("reshards", [True, False])
def test_pipelines_keep_whole_fp32_gradients_and_gathered_weights(mesh, reshards):
    module = Watched(mesh["dp"], reshards=reshards)
    example = torch.randn(2, WHOLE[1], dtype=torch.bfloat16)
    stage = PipelineStage(
        module, 0, 1, torch.device("cpu"), input_args=(example,),
        output_args=(torch.randn(2, WHOLE[0], dtype=torch.bfloat16),), group=mesh.get_group("pp"),
    )  # fmt: skip
    schedule = Schedule1F1B(stage, n_microbatches=3, loss_fn=lambda out, target: out.sum())
    schedule.step(torch.randn(6, WHOLE[1], dtype=torch.bfloat16), target=torch.zeros(6))

    table = zero_stage(2, pipeline=True, accumulates=True)
    first, *later = module.notes[-3:]
    assert table.keeps_weights
    assert table.holds_full_gradients
    assert first[1] is None
    for is_gathered, gradient in later:
        assert gradient is not None
        assert (gradient.dtype, tuple(gradient.shape)) == (torch.float32, WHOLE)
        assert is_gathered
    assert module._parameter.unsharded_accumulated_grad is None
    sharded = module.product.weight.grad.to_local()
    assert (sharded.dtype, sharded.numel()) == (torch.float32, WHOLE[0] * WHOLE[1] // RANKS)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_without_a_pipeline_only_stage_1_keeps_whole_gradients(mesh, stage):
    table = zero_stage(stage, pipeline=False, accumulates=True)
    module = Watched(mesh["dp"], reshards=not table.keeps_weights)
    for microbatch in range(3):
        is_last = microbatch == 2
        module.set_requires_gradient_sync(is_last or not table.holds_full_gradients)
        module.set_reshard_after_backward(is_last or not table.keeps_weights)
        module(torch.randn(2, WHOLE[1], dtype=torch.bfloat16)).sum().backward()
    for is_gathered, gradient in module.notes[1:]:
        assert is_gathered == table.keeps_weights
        assert (gradient is not None) == table.holds_full_gradients


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("pipeline", [False, True])
@pytest.mark.parametrize("accumulates", [False, True])
def test_every_row_is_sound(stage, pipeline, accumulates):
    row = zero_stage(stage, pipeline=pipeline, accumulates=accumulates)
    assert row.stage == stage
    assert row.shards_states == (stage > 0)
    assert (row.reductions_per_step, row.reductions_per_microbatch) in ((1, 0), (0, 1))
    gathers = row.gathers_per_step + row.gathers_per_microbatch
    assert gathers == {"sum once": 0, "gather once": 1, "gather each use": 2}[row.mechanism]
    assert row.keeps_weights == (row.gathers_per_microbatch == 0)
    if row.reductions_per_microbatch:
        assert not row.holds_full_gradients


def test_one_microbatch_leaves_no_gradient_waiting():
    assert not zero_stage(1, pipeline=False, accumulates=False).holds_full_gradients


def test_stages_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="no ZeRO stage 4; use 0, 1, 2 or 3"):
        zero_stage(4, pipeline=False, accumulates=False)
