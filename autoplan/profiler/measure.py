"""Takes all probes of a schedule, one after the other, on every rank alike.

Between two probes the ranks agree whether to go on, so that an interruption (or the end of the time
given) ends all of them at the same place, with what was measured until then.

Where other work disturbs, messages are taken again while there is time, and the least of their
medians counts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from autoplan.profiler.bench import Bench, Run
from autoplan.profiler.probes import (
    Compute,
    Exchange,
    HostCopy,
    HostWork,
    Idle,
    Measured,
    Measurements,
    Overlap,
    Probe,
    Refused,
    Sharing,
    Workspace,
)
from autoplan.profiler.timing import (
    WARM_UP,
    BadMeasurementError,
    samples_alone,
    samples_together,
    undisturbed,
)
from autoplan.progress import Progress

LONG_S = 0.03
"""Of compute in a sample that compares processes: many of the slices in which a core runs them."""
IDLE, MORE_PASSES = 0.9, 4
"""Messages are taken so many times again on a machine that is less idle."""
LEAST_IDLE = 0.3
"""Of the time, that all ranks run together: overlap, a difference of times, is not told below."""
_MESSAGES_SLICES = 3  # as they scatter more than compute
_SHARED = (256, 256, 256)


def measure(
    probes: Sequence[Probe],
    bench: Bench,
    *,
    slice_s: float,
    limit_s: float,
    rounds: int,
    progress: Progress,
    wants_to_stop: Callable[[], bool] = lambda: False,
) -> Measurements:
    """The numbers of the probes, the same on every rank.

    Args:
        slice_s: about how long one probe of time is repeated.
        limit_s: after which no further probe is begun.
        rounds: of what compares one rank with several.
        progress: called with the fraction done and what is measured.
        wants_to_stop: asked between two probes.
    """
    taker = _Taker(bench, slice_s, rounds)
    end_s = bench.clock.wall_s() + limit_s
    measured: dict[str, Measured] = {}
    refused: dict[str, Refused] = {}
    for number, probe in enumerate((*probes, *_messages(probes) * MORE_PASSES)):
        is_again = number >= len(probes)
        if is_again and taker.idle > IDLE:
            break
        stops, late = bench.largest([wants_to_stop(), bench.clock.wall_s() > end_s])
        if stops or late:
            reason = "interrupted" if stops else f"not reached within {limit_s:g} s"
            left = [Refused(name=p.name, reason=reason) for p in probes[number:]]
            refused |= {missed.name: missed for missed in left}
            return _together(measured, refused, interrupted=bool(stops))
        progress(min(1.0, number / len(probes)), probe.name)
        value, reason = taker.take(probe)
        if not reason:
            before = measured.get(probe.name)
            least = min(value, before.value) if before else value
            measured[probe.name] = Measured(probe=probe, value=least)
            refused.pop(probe.name, None)
        elif not is_again:
            refused[probe.name] = Refused(name=probe.name, reason=reason)
    return _together(measured, refused, interrupted=False)


def _messages(probes: Sequence[Probe]) -> tuple[Probe, ...]:
    return tuple(probe for probe in probes if isinstance(probe, Exchange))


def _together(
    measured: Mapping[str, Measured], refused: Mapping[str, Refused], *, interrupted: bool
) -> Measurements:
    return Measurements(
        measured=tuple(measured.values()),
        refused=tuple(refused.values()),
        interrupted=interrupted,
    )


class _Taker:
    def __init__(self, bench: Bench, slice_s: float, rounds: int) -> None:
        self._bench, self._slice_s, self._rounds = bench, slice_s, rounds
        self.idle = 1.0

    def take(self, probe: Probe) -> tuple[float, str]:
        """The number, and why there is none."""
        try:
            value, reason = self._value(probe), ""
        except BadMeasurementError as error:
            value, reason = 0.0, str(error)
        except (RuntimeError, NotImplementedError) as error:
            if isinstance(probe, Exchange | Overlap | Sharing | HostWork):
                raise  # the other ranks wait in a message
            value, reason = 0.0, str(error).partition("\n")[0]
        # Where rank 0 alone measures, its number counts.
        value, failed = self._bench.largest([value, float(bool(reason))])
        return value, reason or ("refused on another rank" if failed else "")

    def _value(self, probe: Probe) -> float:
        match probe:
            case Compute():
                return self._alone(lambda: self._bench.compute(probe))
            case HostCopy():
                return self._alone(lambda: self._bench.host_copy(probe))
            case Exchange():
                return self._exchange(probe)
            case Sharing():
                return self._share(probe)
            case Overlap():
                return self._overlap(probe)
            case HostWork():
                return self._host_work(probe)
            case Idle():
                return self._is_idle(probe)
            case Workspace():
                return float(self._bench.workspace_bytes())

    def _alone(self, make: Callable[[], Run]) -> float:
        if self._bench.rank:
            return 0.0
        return undisturbed(samples_alone(make(), self._bench.clock, self._slice_s))

    def _exchange(self, probe: Exchange) -> float:
        bench = self._bench
        run = bench.exchange(probe)
        bench.barrier()
        slice_s = _MESSAGES_SLICES * self._slice_s
        found = samples_together(run, bench.clock, slice_s, bench.largest)
        return undisturbed(found, self.idle**probe.in_use)

    def _is_idle(self, probe: Idle) -> float:
        """Of the rank that is let run least, in the median of rounds."""
        bench = self._bench
        run, calls = self._long(probe.devices)
        found = []
        for _ in range(self._rounds):
            bench.barrier()
            wall_s, own_s = bench.clock.wall_s(), bench.clock.own_s()
            for _ in range(calls if bench.rank < probe.devices else 0):
                run()
            own_s, wall_s = bench.clock.own_s() - own_s, bench.clock.wall_s() - wall_s
            held_up = 1 - own_s / max(wall_s, 1e-9) if bench.rank < probe.devices else 0.0
            found.append(1 - bench.largest([held_up])[0])
        self.idle = _fraction(found, "share of the time", least=0.0)
        return self.idle

    def _share(self, probe: Sharing) -> float:
        """Rounds of one device at work and of all, so that other work meets both alike."""
        shares = []
        (one, calls), (run, _) = self._long(1), self._long(probe.devices)
        for _ in range(self._rounds):
            alone_s = self._own_s(one, calls, takes_part=self._bench.rank == 0)
            together_s = self._own_s(run, calls, takes_part=self._bench.rank < probe.devices)
            shares.append(alone_s / max(together_s, 1e-9))
        return probe.cores * _fraction(shares, "share", least=0.0)

    def _long(self, in_use: int) -> tuple[Run, int]:
        """A product that every rank can run, and how often it is run in ``LONG_S``."""
        product = Compute(operator="product", shape=_SHARED, dtype="float32", works=())
        run = self._bench.compute(product, in_use=in_use)
        for _ in range(WARM_UP):
            run()
        started_s = self._bench.clock.own_s()
        run()
        once_s = self._bench.clock.own_s() - started_s
        (agreed_s,) = self._bench.largest([once_s if self._bench.rank == 0 else 0.0])
        return run, max(1, math.ceil(LONG_S / max(agreed_s, 1e-9)))

    def _own_s(self, run: Run, calls: int, *, takes_part: bool) -> float:
        """Seconds that the slowest rank worked."""
        self._bench.barrier()
        started_s = self._bench.clock.own_s()
        for _ in range(calls if takes_part else 0):
            run()
        own_s = self._bench.clock.own_s() - started_s
        return self._bench.largest([own_s if takes_part else 0.0])[0]

    def _overlap(self, probe: Overlap) -> float:
        """What is saved of the message or the compute, whichever is less."""
        idle = self.idle**probe.ranks
        if idle < LEAST_IDLE:
            raise BadMeasurementError(f"other work lets all ranks run {idle:.0%} of the time")
        found = self._bench.overlap(probe)
        runs = (found.message, found.compute, found.both) if found else (_nothing,) * 3
        rounds = [[self._wall_s(run) for run in runs] for _ in range(4 * self._rounds)]
        message_s, compute_s, both_s = (
            undisturbed(part, idle) for part in zip(*rounds, strict=True)
        )
        saved_s = message_s + compute_s - both_s
        return _fraction([saved_s / min(message_s, compute_s)], "saved fraction", least=-0.5)

    def _host_work(self, probe: HostWork) -> float:
        """By turns with messages and without, so that other work meets both alike."""
        found = self._bench.host_work(probe)
        runs = (found.sending, found.alone) if found else (_nothing,) * 2
        rounds = [[self._host_s(run) for run in runs] for _ in range(WARM_UP + self._rounds)]
        sending_s, alone_s = map(statistics.median, zip(*rounds[WARM_UP:], strict=True))
        if sending_s <= alone_s:
            raise BadMeasurementError(f"{sending_s:.3g} s with messages, {alone_s:.3g} s without")
        return (sending_s - alone_s) / probe.number

    def _host_s(self, run: Run) -> float:
        """Seconds that the host's thread worked, on the rank where it is longest."""
        self._bench.barrier()
        started_s = self._bench.clock.host_s()
        run()
        return self._bench.largest([self._bench.clock.host_s() - started_s])[0]

    def _wall_s(self, run: Run) -> float:
        """Seconds of the slowest rank, from all being ready."""
        self._bench.barrier()
        started_s = self._bench.clock.wall_s()
        run()
        return self._bench.largest([self._bench.clock.wall_s() - started_s])[0]


def _fraction(found: Sequence[float], what: str, *, least: float) -> float:
    """The median, between 0 and 1; what is noise beyond the ends is the end.

    Raises:
        BadMeasurementError: the median is too far outside for noise.
    """
    middle = statistics.median(found)
    if not (math.isfinite(middle) and least <= middle <= 1.5):
        raise BadMeasurementError(f"a {what} of {middle:.3g} is none")
    return min(1.0, max(0.0, middle))


def _nothing() -> None:
    pass
