"""Properties of predicted step times: sums, orders, and no setup without a sensible answer."""

from __future__ import annotations

from dataclasses import astuple, replace
from itertools import pairwise
from math import isfinite

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from autoplan.validation.setups import framework_features
from autoplan.validation.setups.setup import Framework, Setup
from autoplan.validation.setups.transformer import Transformer
from autoplan.validation.step.step_time import StepTime, step_of
from hardware_profiles.load import load
from tests.unit.memory_setups import setup

FRAMEWORKS = {
    name: value for name, value in vars(framework_features).items() if isinstance(value, Framework)
}
CLUSTERS = {name: load(name) for name in ("dgx-a100-80g", "dgx-h100")}
modest = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.filter_too_much]
)
power = st.integers(0, 3).map(lambda exponent: 2**exponent)


@st.composite
def models(draw: st.DrawFn) -> Transformer:
    heads, head_dim = draw(st.sampled_from((8, 12, 16))), draw(st.sampled_from((64, 128)))
    gated = draw(st.booleans())
    experts = draw(st.sampled_from((0, 0, 8)))
    return Transformer(
        layers=draw(st.integers(1, 12)),
        hidden=heads * head_dim,
        heads=heads,
        kv_heads=draw(st.sampled_from((1, heads // 4, heads))),
        head_dim=head_dim,
        ffn=draw(st.integers(64, 8192)),
        vocab=draw(st.integers(256, 60000)),
        gated=gated,
        rotary=gated,
        biases=not gated,
        tied=draw(st.booleans()),
        experts=experts,
        experts_per_token=2 if experts else 0,
        expert_ffn=draw(st.integers(64, 2048)) if experts else 0,
    )


@st.composite
def runs(draw: st.DrawFn) -> Setup:
    pp, virtual = draw(power), draw(st.sampled_from((1, 1, 2)))
    cp, dp = draw(power), draw(power)
    framework = draw(st.sampled_from([FRAMEWORKS[name] for name in sorted(FRAMEWORKS)]))
    schedules = ["interleaved_1f1b", "zero_bubble"] if virtual > 1 else ["1f1b", "gpipe"]
    if virtual > 1 and framework.overlaps_sends:
        schedules.append("zbv")
    dtypes = ("bfloat16", "float16", "float8_e4m3fn")
    cluster = draw(st.sampled_from(sorted(CLUSTERS)))
    tuning = draw(st.sampled_from(("all", "all", "lora", "adapter", "adapter-v2")))
    return replace(
        setup(
            draw(models()),
            framework,
            seq_len=cp * draw(st.integers(1, 1024)),
            microbatch=draw(st.integers(1, 4)),
            microbatches=pp * draw(st.integers(1, 3)),
            tp=draw(power),
            pp=pp,
            dp=dp,
            cp=cp,
            ep=draw(st.sampled_from([each for each in (1, 2, 4, 8) if dp * cp % each == 0])),
            virtual_stages=virtual,
            schedule=draw(st.sampled_from(schedules)),
            zero=draw(st.integers(0, 3)),
            sequence_parallel=draw(st.booleans()),
            recompute=draw(st.sampled_from(("none", "attention", "operators", "block"))),
            attention=draw(st.sampled_from(("flash", "scores"))),
            compute_dtype=draw(st.sampled_from(dtypes[: 3 if cluster == "dgx-h100" else 2])),
            tuning=tuning,
            quantised=tuning != "all" and draw(st.booleans()),
            layer_only=draw(st.integers(0, 5)) == 0,
            forward_only=draw(st.booleans()),
        ),
        cluster=cluster,
        gpus_per_node=8,
    )


def time_of(run: Setup) -> StepTime:
    return step_of(run, CLUSTERS[run.cluster])


@modest
@given(run=runs())
def test_every_setup_has_a_finite_time_that_is_the_sum_of_its_parts(run: Setup) -> None:
    found = time_of(run)
    assert all(isfinite(each) and each >= 0 for each in astuple(found))
    assert found.step_s > 0
    parts = found.compute_s + found.exposed_comm_s + found.bubble_s + found.optimizer_s
    assert found.step_s == pytest.approx(parts, rel=1e-9)


def whole(run: Setup) -> Setup:
    """With sizes that split into whole cache lines, and a host that never keeps a device waiting.

    Rows that are not whole lines of the cache are slower, so that a larger size can be faster.
    """
    model = replace(run.model, ffn=2048, expert_ffn=2048, vocab=51200, kv_heads=run.model.heads)
    return replace(
        run,
        model=model,
        framework=replace(run.framework, host_s=0.0),
        seq_len=run.cp * (128 + run.seq_len // 128 * 128),
        layer_only=False,
        forward_only=False,
    )


@modest
@given(run=runs(), times=st.integers(2, 4), what=st.sampled_from(("layers", "seq", "microbatches")))
def test_more_work_takes_longer(run: Setup, times: int, what: str) -> None:
    run = whole(run)
    if what == "layers":  # as many in each chunk, else they move to other ranks
        run = replace(run, model=replace(run.model, layers=run.pp * run.virtual_stages))
        more = replace(run, model=replace(run.model, layers=times * run.model.layers))
    elif what == "seq":
        more = replace(run, seq_len=times * run.seq_len)
    else:
        more = replace(run, microbatches=times * run.microbatches)
    assert time_of(more).step_s > time_of(run).step_s


@modest
@given(run=runs())
def test_more_tensor_parallel_ranks_never_compute_longer(run: Setup) -> None:
    """The device; a host that is the slower one starts the messages over tp too."""
    run = whole(replace(run, tp=1, framework=replace(run.framework, host_s=0.0)))
    assume(run.model.heads % 8 == 0)
    compute_s = [time_of(replace(run, tp=tp)).compute_s for tp in (1, 2, 4, 8)]
    for fewer, more in pairwise(compute_s):
        assert more <= fewer * (1 + 1e-9)


@modest
@given(run=runs())
def test_recompute_takes_longer_the_more_runs_again(run: Setup) -> None:
    run = replace(run, layer_only=False, forward_only=False)
    none, attention, operators, block = (
        time_of(replace(run, recompute=each)).step_s
        for each in ("none", "attention", "operators", "block")
    )
    assert none <= attention * (1 + 1e-9)
    assert none <= operators * (1 + 1e-9)
    assert operators <= block * (1 + 1e-9) or run.framework.stops_recompute_early
    if not run.framework.stops_recompute_early:
        assert attention <= block * (1 + 1e-9)
    if run.attention == "scores" and run.tuning != "adapter":
        assert none < attention


@modest
@given(run=runs())
def test_data_parallel_ranks_share_a_global_batch(run: Setup) -> None:
    run = replace(
        run, layer_only=False, pp=1, virtual_stages=1, schedule="1f1b", dp=1, ep=1, microbatches=8
    )
    alone, shared = time_of(run), time_of(replace(run, dp=4, microbatches=2))
    assert shared.compute_s == pytest.approx(alone.compute_s / 4)
    assert shared.optimizer_s <= alone.optimizer_s


@modest
@given(run=runs())
def test_a_layers_forward_is_a_part_of_the_layer_and_that_of_the_step(run: Setup) -> None:
    run = replace(run, pp=1, virtual_stages=1, schedule="1f1b")
    layer = time_of(replace(run, layer_only=True, forward_only=False))
    forward = time_of(replace(run, layer_only=True, forward_only=True))
    assert forward.step_s < layer.step_s
    if run.tuning != "adapter":
        step = time_of(replace(run, layer_only=False, forward_only=False))
        layers = run.microbatches * run.model.layers
        assert step.compute_s > layers * layer.compute_s * (1 - 1e-9)
