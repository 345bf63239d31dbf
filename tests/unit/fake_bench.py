"""A bench without a machine: its clock moves by the cost models' forms with known constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autoplan.profiler.bench import Compared, Overlapped, Run
from autoplan.profiler.probes import Compute, Exchange, HostCopy, HostWork, Overlap
from cost_models.collectives import collective_s
from cost_models.compute import kernel_s
from cost_models.host_work import (
    gather_host_s,
    message_host_s,
    piece_read_s,
    reduce_host_s,
    split_gradient_s,
)
from cost_models.peaks import optimizer_bytes_per_s
from cost_models.work import Gemm
from hardware_profiles.sharing import in_use
from hardware_profiles.spec import ClusterSpec

ALONE = Gemm(m=256, n=256, k=256, dtype="float32", output_bytes=4)


@dataclass
class FakeClock:
    """Other work takes all but ``idle`` of the wall's seconds."""

    idle: float = 1.0
    wall: float = 0.0
    own: float = 0.0

    def wall_s(self) -> float:
        return self.wall

    def own_s(self) -> float:
        return self.own

    def host_s(self) -> float:
        return self.own

    def work(self, seconds: float) -> None:
        self.own += seconds
        self.wall += seconds / self.idle


@dataclass
class FakeBench:
    """One rank that speaks for all of a cluster whose devices and links are ``truth``.

    Attributes:
        cores: fraction of a core that each of so many working ranks has.
        delays: seconds that the samples of messages take longer, in turn.
        breaks: names of operators that the device lacks.
    """

    truth: ClusterSpec
    clock: FakeClock = field(default_factory=FakeClock)
    cores: dict[int, float] = field(default_factory=dict)
    delays: Sequence[float] = (0.0,)
    breaks: tuple[str, ...] = ()
    rank: int = 0
    taken: list[str] = field(default_factory=list)
    sent: int = 0

    def compute(self, probe: Compute, *, in_use: int = 1) -> Run:
        self.taken.append(probe.name)
        if probe.operator in self.breaks:
            raise RuntimeError(f'"{probe.operator}" not implemented\nand more lines')
        busy = _in_use(self.truth, in_use)
        seconds = sum(kernel_s(work, busy.device) for work in probe.works or (ALONE,))
        tensor_s = busy.device.optimizer_tensor_s or 1e-9
        if probe.operator == "adamw":
            seconds = 84 * probe.shape[0] / optimizer_bytes_per_s(busy.device) + tensor_s
        elif probe.operator == "adamw tensors":
            seconds = probe.shape[0] * tensor_s
        elif probe.operator == "adamw pieces":
            seconds = probe.shape[0] * (busy.device.optimizer_piece_s or 1e-9)
        return self._working(seconds * self.cores.get(in_use, 1.0))

    def exchange(self, probe: Exchange) -> Run | None:
        self.taken.append(probe.name)
        busy = _in_use(self.truth, probe.in_use)
        seconds = collective_s(probe.kind, probe.nbytes, probe.ranks, probe.per_node, busy)

        def send() -> None:
            delay = self.delays[self.sent % len(self.delays)]
            self.sent += 1
            self.clock.wall += seconds + delay

        return send

    def overlap(self, probe: Overlap) -> Overlapped | None:
        message_s, compute_s = 3e-3, 2e-3
        both_s = message_s + compute_s - self.truth.overlap_efficiency * compute_s
        return Overlapped(*(self._waiting(s) for s in (message_s, compute_s, both_s)))

    def host_work(self, probe: HostWork) -> Compared | None:
        device = _in_use(self.truth, 2).device
        gather_s = gather_host_s(probe.nbytes, device)
        each_s = {
            "pieces": piece_read_s(device),
            "messages": message_host_s(device),
            "gradients": split_gradient_s(device),
            "units forward": gather_s,
            "units": 2 * gather_s + reduce_host_s(probe.nbytes, device),
        }[probe.around]
        return Compared(self._working(1e-3 + probe.number * each_s), self._working(1e-3))

    def host_copy(self, probe: HostCopy) -> Run:
        rate = self.truth.device.host_link_bytes_per_s
        assert rate is not None
        return self._working(probe.nbytes / rate / (1 if probe.to_device else 0.5))

    def workspace_bytes(self) -> int:
        return self.truth.device.workspace_bytes

    def barrier(self) -> None:
        pass

    def largest(self, values: Sequence[float]) -> list[float]:
        return [float(value) for value in values]

    def _working(self, seconds: float) -> Callable[[], None]:
        return lambda: self.clock.work(seconds)

    def _waiting(self, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.clock.wall += seconds

        return run


_in_use = in_use
