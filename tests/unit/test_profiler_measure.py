"""How times are taken: warm, repeated, medians; what is refused; ends that ranks agree on."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.profiler import timing
from autoplan.profiler.measure import measure
from autoplan.profiler.probes import Compute, Exchange, Idle, Overlap, Sharing
from autoplan.profiler.schedule import Setting, probes_for, products
from autoplan.profiler.timing import BadMeasurementError, undisturbed
from cost_models.collectives import collective_s
from hardware_profiles.load import load
from tests.unit.fake_bench import FakeBench, FakeClock

CLUSTER = load("cpu-gloo")
PRODUCT, GRADIENTS = products((64, 64, 64), "float32")
REDUCE = Exchange(kind="all_reduce", nbytes=4096, ranks=2, per_node=2, in_use=2)
REDUCE_S = collective_s("all_reduce", 4096, 2, 2, CLUSTER)


def taken(probes, bench, **options):
    given_options = {
        "slice_s": 0.1, "limit_s": 1e9, "rounds": 5, "progress": lambda _, __: None,
    } | options  # fmt: skip
    return measure(probes, bench, **given_options)


def values(found):
    return {row.probe.name: row.value for row in found.measured}


def reasons(found):
    return {left.name: left.reason for left in found.refused}


def test_calls_are_warmed_up_and_repeated_for_their_slice():
    clock, ran = FakeClock(), []

    def run():
        ran.append(clock.own)
        clock.work(1e-3 if len(ran) > timing.WARM_UP else 1.0)

    found = timing.samples_alone(run, clock, slice_s=0.05)
    assert found == pytest.approx([1e-3] * len(found))
    assert 48 <= len(found) <= 51


def test_short_calls_are_timed_together_and_long_ones_five_times():
    clock = FakeClock()
    short = timing.samples_alone(lambda: clock.work(1e-6), clock, slice_s=1e-2)
    assert short == pytest.approx([1e-6] * len(short))
    assert len(short) < 1e-2 / 1e-6 / 100
    assert len(timing.samples_alone(lambda: clock.work(3.0), clock, 0.1)) == timing.FEWEST


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(1.0, 1.2), min_size=8, max_size=40), st.randoms())
def test_other_work_does_not_move_the_median_of_what_it_left_alone(quick, random):
    """A fifth of the samples is undisturbed, the others took ten times as long or more."""
    slow = [random.uniform(10, 90) for _ in range(4 * len(quick))]
    mixed = [*quick, *slow]
    random.shuffle(mixed)
    assert undisturbed(mixed, 0.2) == pytest.approx(statistics.median(quick), rel=0.02)
    assert undisturbed(quick) == statistics.median(quick)


@pytest.mark.parametrize(
    ("samples", "complaint"),
    [
        ([0.0] * 9, "the clock says 0.0 s"),
        ([math.nan] * 9, "the clock says nan s"),
        ([-1.0] * 9, "the clock says -1.0 s"),
        ([1, 1, 1, 5, 5, 5, 9, 9], "times scatter from 1 to 8 s around 5 s"),
    ],
)
def test_what_is_no_measurement_is_refused(samples, complaint):
    with pytest.raises(BadMeasurementError, match=complaint):
        undisturbed(samples)


def test_an_operator_that_the_device_lacks_is_refused_by_name():
    bench = FakeBench(truth=CLUSTER, breaks=("product",))
    found = taken([PRODUCT, REDUCE], bench)
    assert reasons(found) == {PRODUCT.name: '"product" not implemented'}
    assert values(found) == {REDUCE.name: pytest.approx(REDUCE_S)}


def test_a_broken_message_ends_all_ranks():
    class Broken(FakeBench):
        def exchange(self, probe):
            raise RuntimeError("connection closed by peer")

    with pytest.raises(RuntimeError, match="connection closed"):
        taken([REDUCE], Broken(truth=CLUSTER))


def test_an_interruption_keeps_what_was_measured():
    asked = []

    def stops():
        asked.append(0)
        return len(asked) == 3

    found = taken([PRODUCT, GRADIENTS, REDUCE], FakeBench(truth=CLUSTER), wants_to_stop=stops)
    assert found.interrupted
    assert list(values(found)) == [PRODUCT.name, GRADIENTS.name]
    assert reasons(found) == {REDUCE.name: "interrupted"}


def test_the_time_limit_names_what_it_did_not_reach():
    bench = FakeBench(truth=CLUSTER)
    found = taken([PRODUCT, GRADIENTS, REDUCE], bench, limit_s=0.15)
    assert not found.interrupted
    assert list(values(found)) == [PRODUCT.name, GRADIENTS.name]
    assert reasons(found) == {REDUCE.name: "not reached within 0.15 s"}


def test_ranks_that_share_a_core_are_measured_on_their_own_clock():
    """What a device loses by the others' memory and clocks times the fraction of a core it has."""
    truth = replace(CLUSTER, busy_share={4: 0.4})
    bench = FakeBench(truth=truth, clock=FakeClock(idle=0.3), cores={4: 0.5})
    found = taken([Sharing(devices=4, cores=0.5)], bench)
    assert values(found) == {"4 devices at work": pytest.approx(0.4)}


def test_beside_other_work_messages_are_taken_again_and_the_least_counts():
    busy = FakeBench(truth=CLUSTER, clock=FakeClock(idle=0.5), delays=(0.0, 0.01, 0.0, 0.02))
    found = taken([Idle(name="idle"), REDUCE], busy)
    assert values(found) == {"idle": pytest.approx(0.5), REDUCE.name: pytest.approx(REDUCE_S)}
    assert busy.taken.count(REDUCE.name) == 5
    calm = FakeBench(truth=CLUSTER)
    taken([Idle(name="idle"), REDUCE], calm)
    assert calm.taken.count(REDUCE.name) == 1


def test_overlap_is_not_told_beside_other_work():
    probe = Overlap(nbytes=2**20, ranks=2)
    busy = FakeBench(truth=CLUSTER, clock=FakeClock(idle=0.2))
    found = taken([Idle(name="idle"), probe], busy)
    assert reasons(found) == {probe.name: "other work lets all ranks run 4% of the time"}


@pytest.mark.parametrize("is_gpu", [False, True])
@pytest.mark.parametrize(("world", "per_node"), [(1, 1), (2, 2), (6, 6), (16, 8)])
def test_schedules_name_every_probe_once_and_grow(is_gpu, world, per_node):
    quick, full = (
        probes_for(
            Setting(is_gpu=is_gpu, world=world, per_node=per_node, cores=4, threads=1, quick=quick)
        )
        for quick in (True, False)
    )
    for probes in (quick, full):
        names = [probe.name for probe in probes]
        assert len(names) == len(set(names))
    assert {probe.name for probe in quick} < {probe.name for probe in full}
    groups = {probe.ranks for probe in full if isinstance(probe, Exchange)}
    assert groups == {1: set(), 2: {2}, 6: {2, 4, 6}, 16: {2, 4, 8, 16}}[world]


def test_works_of_a_probe_are_all_its_copies():
    for probe in probes_for(
        Setting(is_gpu=False, world=1, per_node=1, cores=1, threads=1, quick=True)
    ):
        if isinstance(probe, Compute) and probe.works:
            kernels = 2 if probe.backward and probe.operator == "product" else 1
            assert len(probe.works) == kernels * probe.copies
