"""Measures on the ranks that ``torchrun`` started, or on ranks of its own on a CPU.

An interruption is a wish that the ranks agree on between two probes; another one some seconds later
ends them at once (``torchrun`` passes on what the terminal has already sent). Rank 0's measurements
count.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import date

import torch
import torch.distributed as dist
from pydantic import TypeAdapter

from autoplan.errors import ProfileError
from autoplan.profiler.machine import adapters, link_between_gpus, this_machine
from autoplan.profiler.measure import measure
from autoplan.profiler.probes import Measured, Measurements, Refused
from autoplan.profiler.profile import Profiled, profiled
from autoplan.profiler.schedule import Setting, probes_for
from autoplan.profiler.torch_bench import TorchBench
from autoplan.progress import Progress, silent
from autoplan.verification.processes import run_ranks
from hardware_profiles.load import ProfileFault, load, load_facts
from hardware_profiles.schema import ProfileFacts
from hardware_profiles.spec import MachineSpec

QUICK_LIMIT_S, FULL_LIMIT_S = 28.0, 480.0
_SLICES_S = {True: 0.08, False: 0.8}
_ROUNDS = {True: 7, False: 25}
_STARTS_S = 60.0
_SAME_WISH_S = 3.0
_LEAST_RANKS, _MOST_RANKS = 4, 8
Show = Callable[[], AbstractContextManager[Progress]]
_LETTER = TypeAdapter(tuple[dict[str, float], dict[str, str], bool])


def profile_machine(
    base: str,
    *,
    quick: bool,
    show: Show,
    today: date,
) -> Profiled | None:
    """The profile of this machine; None on ranks other than the first.

    Args:
        base: the profile whose values stay where nothing is measured.
        quick: in about 50 s, with fewer shapes, sizes and repetitions.
        show: makes what shows progress, in the process of rank 0.

    Raises:
        ProfileError: an unknown base, ranks that failed, or nothing measured.
    """
    try:
        facts, cluster = load_facts(base), load(base)
    except ProfileFault as fault:
        raise ProfileError(str(fault)) from None
    machine = this_machine()
    _check_link(facts)
    alone_on_cpu = not torch.cuda.is_available() and "RANK" not in os.environ
    if alone_on_cpu:
        machine = replace(machine, threads=1)  # as each rank is given
    setting = _setting(machine, quick)
    if alone_on_cpu:
        found = _on_own_ranks(setting, show)
    else:
        found = _measured_here(setting, show)
        if dist.is_initialized() and dist.get_rank():
            return None
    try:
        return profiled(found, setting, machine, facts, cluster, today)
    except ValueError as error:
        reasons = "; ".join(f"{left.name}: {left.reason}" for left in found.refused[:1])
        raise ProfileError(f"no profile: {error} ({reasons}); run it again") from None


def _setting(machine: MachineSpec, quick: bool) -> Setting:
    """The job of ``torchrun``, or alone: one rank a GPU, 4 or more on a CPU."""
    is_gpu = torch.cuda.is_available()
    alone = 1 if is_gpu else min(_MOST_RANKS, max(_LEAST_RANKS, machine.cores))
    return Setting(
        is_gpu=is_gpu,
        world=int(os.environ.get("WORLD_SIZE", alone)),
        per_node=int(os.environ.get("LOCAL_WORLD_SIZE", alone)),
        cores=machine.cores,
        threads=machine.threads,
        quick=quick,
        adapters=adapters() if is_gpu else 0,
    )


def _check_link(base: ProfileFacts) -> None:
    """Refuses a base whose devices are joined by another link than the GPUs here."""
    here = link_between_gpus() if torch.cuda.is_available() else None
    if here is not None and base.intra_node.name != here:
        raise ProfileError(
            f"the GPUs here are joined by {here}, those of {base.name} by {base.intra_node.name}: "
            "give --base a profile with the same link (autoplan clusters lists them)"
        )


def _on_own_ranks(setting: Setting, show: Show) -> Measurements:
    def on_rank(_: int) -> bytes:
        return _packed(_measured_here(setting, show))

    limit_s = QUICK_LIMIT_S if setting.quick else FULL_LIMIT_S
    with _ignoring_interruption():
        first = run_ranks(on_rank, setting.world, deadline_s=limit_s + _STARTS_S)
    failed = [f"rank {rank}" for rank, ending in enumerate(first) if not ending.ok]
    if failed:
        reasons = [ending.error.strip().splitlines()[-1] for ending in first if ending.error]
        raise ProfileError(
            f"measuring failed on {', '.join(failed)}: {(reasons or ['ended'])[0]}; run it again"
        )
    return _unpacked(first[0].result, setting)


def _measured_here(setting: Setting, show: Show) -> Measurements:
    bench = TorchBench()
    shown = show() if bench.rank == 0 else nullcontext(silent)
    with _wishes_to_stop() as wants_to_stop, shown as progress:
        return measure(
            probes_for(setting),
            bench,
            slice_s=_SLICES_S[setting.quick],
            limit_s=QUICK_LIMIT_S if setting.quick else FULL_LIMIT_S,
            rounds=_ROUNDS[setting.quick],
            progress=progress,
            wants_to_stop=wants_to_stop,
        )


@contextmanager
def _wishes_to_stop() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C, or the end that ``torchrun`` asks for, came."""
    wished_s: float | None = None
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)}

    def wish(_: int, __: object) -> None:
        nonlocal wished_s
        if wished_s is not None and time.monotonic() > wished_s + _SAME_WISH_S:
            raise KeyboardInterrupt
        wished_s = wished_s or time.monotonic()

    for kind in before:
        signal.signal(kind, wish)
    try:
        yield lambda: wished_s is not None
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


@contextmanager
def _ignoring_interruption() -> Iterator[None]:
    """While ranks of our own decide what Ctrl-C, which the terminal sends them too, ends."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _packed(found: Measurements) -> bytes:
    values = {row.probe.name: row.value for row in found.measured}
    reasons = {left.name: left.reason for left in found.refused}
    return _LETTER.dump_json((values, reasons, found.interrupted))


def _unpacked(letter: bytes, setting: Setting) -> Measurements:
    values, reasons, interrupted = _LETTER.validate_json(letter)
    probes = {probe.name: probe for probe in probes_for(setting)}
    return Measurements(
        measured=tuple(Measured(probe=probes[n], value=value) for n, value in values.items()),
        refused=tuple(Refused(name=n, reason=reason) for n, reason in reasons.items()),
        interrupted=interrupted,
    )
