"""The bench of real devices: PyTorch's operators, and messages as the runtime sends them.

On a CPU with one thread a process, an operator's seconds are those that the process ran, so that
other work on the machine does not count; messages, and what runs beside them, take the wall's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from autoplan.profiler.bench import Compared, Overlapped, Run
from autoplan.profiler.probes import Compute, Exchange, HostCopy, HostWork, Overlap
from autoplan.profiler.torch_host_work import mesh_of_two, programs
from autoplan.profiler.torch_messages import sender, starts_sum, summed
from autoplan.profiler.torch_operators import runnable

_BESIDE = {True: ((4096, 4096, 4096), "bfloat16"), False: ((256, 256, 256), "float32")}
_FEW = 8


class CpuClock:
    """Seconds of the wall, and of the process where it has one thread."""

    def wall_s(self) -> float:
        return time.perf_counter()

    def own_s(self) -> float:
        return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()

    def host_s(self) -> float:
        return time.thread_time()


class GpuClock:
    """Seconds of the wall, once the GPU is done."""

    def wall_s(self) -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    def own_s(self) -> float:
        return self.wall_s()

    def host_s(self) -> float:
        return time.thread_time()


class TorchBench:
    """On the process group that the rank has joined; without one, a rank alone."""

    def __init__(self) -> None:
        self.is_gpu = torch.cuda.is_available()
        self._device = torch.device("cuda" if self.is_gpu else "cpu")
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        self.clock = GpuClock() if self.is_gpu else CpuClock()
        self.per_node = int(os.environ.get("LOCAL_WORLD_SIZE", str(self.world)))
        # Made by all ranks at once; later rank 0 alone asks for operators on pieces.
        names, kind = ("ranks",), self._device.type
        self._mesh = (
            init_device_mesh(kind, (self.world,), mesh_dim_names=names) if self.world > 1 else None
        )
        self._pair = mesh_of_two(kind)
        self._groups: dict[int, dist.ProcessGroup | None] = {}

    def compute(self, probe: Compute, *, in_use: int = 1) -> Run:
        return runnable(probe, self._device, self._mesh)

    def exchange(self, probe: Exchange) -> Run | None:
        group = self._group_of(probe.ranks)
        if group is None or self.rank % self.per_node >= probe.in_use:
            return None
        return sender(probe, group, self._device)

    def overlap(self, probe: Overlap) -> Overlapped | None:
        group = self._group_of(probe.ranks)
        takes_part = group is not None and (self.rank < probe.ranks or self.world == probe.ranks)
        x = torch.zeros(probe.nbytes // 4, device=self._device)
        shape, dtype = _BESIDE[self.is_gpu]
        product = Compute(operator="product", shape=shape, dtype=dtype, works=())
        once = runnable(product, self._device)
        message = summed(x, group) if group is not None and takes_part else _nothing
        calls = max(1, round(self._quickest_s(message) / self._quickest_s(once)))
        if group is None or not takes_part:
            return None

        def compute() -> None:
            for _ in range(calls):
                once()

        def both() -> None:
            wait = starts_sum(x, group)
            compute()
            wait()

        return Overlapped(message=message, compute=compute, both=both)

    def host_work(self, probe: HostWork) -> Compared | None:
        if self._pair is None or self.rank >= self._pair.size():
            return None
        return programs(probe, self._pair)

    def host_copy(self, probe: HostCopy) -> Run:
        host = torch.empty(probe.nbytes, dtype=torch.uint8, pin_memory=True)
        device = torch.empty(probe.nbytes, dtype=torch.uint8, device=self._device)
        if probe.to_device:
            host, device = device, host
        return partial(_copy, host, device)

    def workspace_bytes(self) -> int:
        if self.is_gpu:
            torch.zeros(1, device=self._device).add_(1)
            free, total = torch.cuda.mem_get_info()
            return total - free - torch.cuda.memory_reserved()
        pages = int(open("/proc/self/statm").read().split()[1])  # noqa: SIM115
        return pages * os.sysconf("SC_PAGE_SIZE")

    def barrier(self) -> None:
        if self.world > 1:
            dist.barrier()

    def largest(self, values: Sequence[float]) -> list[float]:
        if self.world == 1:
            return [float(value) for value in values]
        found = torch.tensor([float(value) for value in values], device=self._device).double()
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return found.tolist()

    def _quickest_s(self, run: Run) -> float:
        """Of a few runs, on the slowest rank."""
        found = []
        for _ in range(_FEW):
            started_s = self.clock.wall_s()
            run()
            found.append(self.clock.wall_s() - started_s)
        return max(1e-6, self.largest([min(found)])[0])

    def _group_of(self, ranks: int) -> dist.ProcessGroup | None:
        """This rank's group of so many neighbours in its node, or of all; made by all at once."""
        if ranks not in self._groups:
            self._groups[ranks] = None
            for first in self._firsts(ranks):
                made = dist.new_group(list(range(first, first + ranks)))
                if first <= self.rank < first + ranks and isinstance(made, dist.ProcessGroup):
                    self._groups[ranks] = made
        return self._groups[ranks]

    def _firsts(self, ranks: int) -> list[int]:
        if ranks > self.per_node:
            return [0]
        return [
            node + first
            for node in range(0, self.world, self.per_node)
            for first in range(0, self.per_node - ranks + 1, ranks)
        ]


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source, non_blocking=True)


def _nothing() -> None:
    pass
